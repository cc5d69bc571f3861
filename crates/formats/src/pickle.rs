//! Just enough of Python's pickle (protocols 2 to 5) to find tensors in what `torch.save` writes.
//!
//! Relies on nothing but bytes. The idea: nothing is ever called or constructed; a reduction is kept as a node with its
//! arguments, a persistent identifier as a node with its tuple, and whoever walks the tree decides what they mean.

use crate::cursor::Cursor;
use crate::reason::{Reason, Result};

/// Index of a node in a [`Tree`].
pub(crate) type NodeId = usize;

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    None,
    Integer(i64),
    Text(String),
    /// `module name`, as pickle joins them.
    Global(String),
    /// A tuple, list or set.
    Sequence(Vec<NodeId>),
    Dictionary(Vec<(NodeId, NodeId)>),
    /// A function or class, its arguments, and the state given to the result.
    Call {
        function: NodeId,
        arguments: NodeId,
        state: Option<NodeId>,
    },
    Persistent(NodeId),
    /// A value that no tensor needs.
    Other,
}

/// All values of a pickle; containers refer to others by index, so that shared and cyclic ones are no problem.
pub(crate) struct Tree {
    nodes: Vec<Node>,
    pub(crate) root: NodeId,
}

impl Tree {
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        let Some(node) = self.nodes.get(id) else {
            unreachable!("numbers of nodes are made by `push` alone")
        };
        node
    }

    pub(crate) fn text(&self, id: NodeId) -> Option<&str> {
        match self.node(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn unsigned(&self, id: NodeId) -> Option<u64> {
        match self.node(id) {
            Node::Integer(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    pub(crate) fn sequence(&self, id: NodeId) -> Option<&[NodeId]> {
        match self.node(id) {
            Node::Sequence(items) => Some(items),
            _ => None,
        }
    }
}

/// Most operations of one pickle, which bounds its values, stack and memo: a tensor takes about thirty.
const OPERATIONS_MAX: usize = 4 << 20;

/// The machine: a stack of nodes and marks, and the memo.
#[derive(Default)]
struct Machine {
    nodes: Vec<Node>,
    stack: Vec<NodeId>,
    marks: Vec<usize>,
    memo: std::collections::HashMap<u64, NodeId>,
}

/// Reads one pickle; of one that can't be read to its end, what was made up to there.
pub(crate) fn read(bytes: Vec<u8>, offset: u64) -> Result<Tree> {
    let mut cursor = Cursor::new("pickle", offset, bytes);
    let mut machine = Machine::default();
    let ended = machine.run(&mut cursor);
    match (ended, machine.stack.as_slice()) {
        (Ok(Some(root)), _) => Ok(Tree { nodes: machine.nodes, root }),
        // One without end is none.
        (Ok(None), _) => cursor.invalid(),
        (Err(reason), []) => Err(reason),
        (Err(_), _) => {
            let made = std::mem::take(&mut machine.stack);
            machine.push(Node::Sequence(made));
            let root = machine.nodes.len() - 1;
            Ok(Tree { nodes: machine.nodes, root })
        }
    }
}

fn line(cursor: &mut Cursor) -> Result<String> {
    let mut bytes = Vec::new();
    loop {
        match cursor.u8()? {
            b'\n' => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            byte => bytes.push(byte),
        }
    }
}

impl Machine {
    /// Takes steps up to the end; what the pickle makes, if it takes no more steps than it may.
    fn run(&mut self, cursor: &mut Cursor) -> Result<Option<NodeId>> {
        for _ in 0..OPERATIONS_MAX {
            let place = cursor.offset();
            let code = cursor.u8()?;
            if code == b'.' {
                return self.pop(place).map(Some);
            }
            self.step(code, cursor, place)?;
        }
        Ok(None)
    }

    fn invalid(place: u64) -> Reason {
        Reason::Invalid { what: "pickle", offset: place }
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn pop(&mut self, place: u64) -> Result<NodeId> {
        self.stack.pop().ok_or_else(|| Self::invalid(place))
    }

    /// The nodes above the last mark.
    fn pop_mark(&mut self, place: u64) -> Result<Vec<NodeId>> {
        let mark =
            self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or_else(|| Self::invalid(place))?;
        Ok(self.stack.split_off(mark))
    }

    fn top(&mut self, place: u64) -> Result<&mut Node> {
        let id = *self.stack.last().ok_or_else(|| Self::invalid(place))?;
        self.nodes.get_mut(id).ok_or_else(|| Self::invalid(place))
    }

    fn step(&mut self, code: u8, cursor: &mut Cursor, place: u64) -> Result<()> {
        match code {
            0x80 => cursor.skip(1)?, // protocol
            0x95 => cursor.skip(8)?, // frame
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop(place)?),
            b'2' => self.stack.push(*self.stack.last().ok_or_else(|| Self::invalid(place))?),
            b'1' => drop(self.pop_mark(place)?),
            b'N' => self.push(Node::None),
            0x88 | 0x89 => self.push(Node::Integer(i64::from(code == 0x88))),
            b'K' | b'M' | b'J' | 0x8a | 0x8b | b'I' | b'L' => self.integer(code, cursor)?,
            b'G' => {
                cursor.skip(8)?;
                self.push(Node::Other);
            }
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'B' | b'C' | 0x8e | 0x96 | b'V' | b'S' | b'F' => {
                self.text(code, cursor)?
            }
            b'c' => {
                let name = format!("{} {}", line(cursor)?, line(cursor)?);
                self.push(Node::Global(name));
            }
            b'q' | b'r' | b'p' | 0x94 | b'h' | b'j' | b'g' => self.memo(code, cursor, place)?,
            b')' | b']' | b'}' | b't' | b'l' | b'd' | 0x85..=0x87 | 0x8f..=0x91 => {
                self.container(code, place)?
            }
            b'a' | b'e' | b's' | b'u' => self.fill(code, place)?,
            b'R' | 0x81 | 0x92 | 0x93 | b'b' | b'Q' => self.call(code, place)?,
            b'P' | b'i' | b'o' | 0x82..=0x84 | 0x97 | 0x98 => self.seldom(code, cursor, place)?,
            _ => return cursor.invalid(),
        }
        Ok(())
    }

    /// Operations of old protocols, registered extensions and buffers beside the pickle.
    fn seldom(&mut self, code: u8, cursor: &mut Cursor, place: u64) -> Result<()> {
        let node = match code {
            b'P' => {
                let identifier = line(cursor)?;
                self.push(Node::Text(identifier));
                Node::Persistent(self.pop(place)?)
            }
            b'i' => {
                let name = format!("{} {}", line(cursor)?, line(cursor)?);
                let arguments = self.pop_mark(place)?;
                self.push(Node::Global(name));
                self.push(Node::Sequence(arguments));
                let arguments = self.pop(place)?;
                Node::Call { function: self.pop(place)?, arguments, state: None }
            }
            b'o' => {
                let mut arguments = self.pop_mark(place)?.into_iter();
                let function = arguments.next().ok_or_else(|| Self::invalid(place))?;
                self.push(Node::Sequence(arguments.collect()));
                Node::Call { function, arguments: self.pop(place)?, state: None }
            }
            0x82..=0x84 => {
                cursor.skip(1 << (code - 0x82))?;
                Node::Other
            }
            0x97 => Node::Other,
            // A buffer becomes one that can only be read.
            _ => return Ok(()),
        };
        self.push(node);
        Ok(())
    }

    fn integer(&mut self, code: u8, cursor: &mut Cursor) -> Result<()> {
        let value = match code {
            b'K' => i64::from(cursor.u8()?),
            b'M' => i64::from(cursor.u16_le()?),
            b'J' => i64::from(i32::from_le_bytes(cursor.array()?)),
            b'I' | b'L' => {
                // What is no number of 64 bits is no length of a tensor.
                let number = line(cursor)?.trim_end_matches('L').parse();
                self.push(number.map_or(Node::Other, Node::Integer));
                return Ok(());
            }
            _ => {
                let length = cursor.length_le(if code == 0x8a { 1 } else { 4 })?;
                return self.long(cursor.take(length)?.to_vec());
            }
        };
        self.push(Node::Integer(value));
        Ok(())
    }

    /// A long integer, little-endian two's complement; what doesn't fit 64 bits is no length of a tensor.
    fn long(&mut self, bytes: Vec<u8>) -> Result<()> {
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        let node = match wide.get_mut(..bytes.len()) {
            Some(low) => {
                low.copy_from_slice(&bytes);
                Node::Integer(i64::from_le_bytes(wide))
            }
            None => Node::Other,
        };
        self.push(node);
        Ok(())
    }

    fn text(&mut self, code: u8, cursor: &mut Cursor) -> Result<()> {
        let width = match code {
            b'U' | b'C' | 0x8c => 1,
            b'X' | b'T' | b'B' => 4,
            0x8d | 0x8e | 0x96 => 8,
            _ => {
                let text = line(cursor)?;
                self.push(Node::Text(text.trim_matches(['\'', '"']).to_owned()));
                return Ok(());
            }
        };
        let length = cursor.length_le(width)?;
        let text = cursor.text(length)?;
        self.push(Node::Text(text));
        Ok(())
    }

    fn memo(&mut self, code: u8, cursor: &mut Cursor, place: u64) -> Result<()> {
        let key = match code {
            b'q' | b'h' => u64::from(cursor.u8()?),
            b'r' | b'j' => u64::from(cursor.u32_le()?),
            b'p' | b'g' => line(cursor)?.parse().map_err(|_| Self::invalid(place))?,
            _ => self.memo.len() as u64,
        };
        if matches!(code, b'h' | b'j' | b'g') {
            self.stack.push(*self.memo.get(&key).ok_or_else(|| Self::invalid(place))?);
        } else {
            self.memo.insert(key, *self.stack.last().ok_or_else(|| Self::invalid(place))?);
        }
        Ok(())
    }

    fn container(&mut self, code: u8, place: u64) -> Result<()> {
        let node = match code {
            b')' | b']' | 0x8f => Node::Sequence(Vec::new()),
            b'}' => Node::Dictionary(Vec::new()),
            b't' | b'l' | 0x91 => Node::Sequence(self.pop_mark(place)?),
            b'd' => Node::Dictionary(pairs(&self.pop_mark(place)?)),
            0x90 => return self.fill(b'e', place),
            _ => {
                let length = usize::from(code - 0x84);
                let start = self.stack.len().checked_sub(length).ok_or_else(|| Self::invalid(place))?;
                Node::Sequence(self.stack.split_off(start))
            }
        };
        self.push(node);
        Ok(())
    }

    /// Appends to the list, or sets items of the dictionary, below.
    fn fill(&mut self, code: u8, place: u64) -> Result<()> {
        let items = match code {
            b'a' => vec![self.pop(place)?],
            b's' => {
                let value = self.pop(place)?;
                vec![self.pop(place)?, value]
            }
            _ => self.pop_mark(place)?,
        };
        match self.top(place)? {
            Node::Sequence(list) => list.extend(items),
            Node::Dictionary(entries) => entries.extend(pairs(&items)),
            // Items given to an object, as to an `OrderedDict`: the object becomes the dictionary.
            other @ Node::Call { .. } if matches!(code, b's' | b'u') => {
                *other = Node::Dictionary(pairs(&items))
            }
            other => *other = Node::Other,
        }
        Ok(())
    }

    fn call(&mut self, code: u8, place: u64) -> Result<()> {
        let last = self.pop(place)?;
        let node = match code {
            b'Q' => Node::Persistent(last),
            b'b' => return self.build(last, place),
            0x93 => {
                let module = self.pop(place)?;
                let part = |id: NodeId| match self.nodes.get(id) {
                    Some(Node::Text(text)) => text.clone(),
                    _ => String::new(),
                };
                Node::Global(format!("{} {}", part(module), part(last)))
            }
            0x92 => {
                let arguments = self.pop(place)?;
                Node::Call { function: self.pop(place)?, arguments, state: None }
            }
            _ => Node::Call { function: self.pop(place)?, arguments: last, state: None },
        };
        self.push(node);
        Ok(())
    }

    fn build(&mut self, given: NodeId, place: u64) -> Result<()> {
        if let Node::Call { state, .. } = self.top(place)? {
            *state = Some(given);
        }
        Ok(())
    }
}

fn pairs(items: &[NodeId]) -> Vec<(NodeId, NodeId)> {
    items.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)).collect()
}
