//! What a store answers: XML of listings, uploads and errors.
//!
//! Relies on `roxmltree`, which resolves no entities of its own and has no recursion to exhaust. The idea: whatever comes is
//! only looked through for the few elements that matter; what lacks them is an error, never a panic.

use roxmltree::{Document, Node, ParsingOptions};

use crate::error::{ObjectError, Result, Trouble};

/// Most elements of one answer that are looked at: a page of a listing has a thousand keys with ten elements each.
const NODES_MAX: u32 = 200_000;
/// Longest message of a store that is passed on, characters.
const MESSAGE_MAX: usize = 300;

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its length, bytes.
    pub size: u64,
    /// Changes when the object is replaced.
    pub stamp: String,
}

/// One page of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Listed>,
    /// Where the next page begins; none: this is the last.
    pub(crate) next: Option<String>,
}

/// An upload that was begun and is neither complete nor aborted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    pub(crate) key: String,
    pub(crate) id: String,
}

/// What a store says of a request that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
}

pub(crate) fn page(bytes: &[u8]) -> Result<Page> {
    looked_through(bytes, "a listing", |root| {
        if !root.has_tag_name_of("ListBucketResult") {
            return None;
        }
        let objects = root.all("Contents").map(|node| {
            let stamp = ["Size", "LastModified", "ETag"].map(|name| node.text_of(name).unwrap_or_default());
            Some(Listed {
                key: node.text_of("Key")?,
                size: node.text_of("Size")?.parse().ok()?,
                stamp: stamp.join(" "),
            })
        });
        let is_cut = root.text_of("IsTruncated").is_some_and(|text| text == "true");
        // A page that is not the last and doesn't say where the next begins would be asked for again and again.
        let next = if is_cut { Some(root.text_of("NextContinuationToken")?) } else { None };
        Some(Page { objects: objects.collect::<Option<_>>()?, next })
    })
}

pub(crate) fn upload_id(bytes: &[u8]) -> Result<String> {
    looked_through(bytes, "the start of an upload", |root| root.text_of("UploadId"))
}

pub(crate) fn uploads(bytes: &[u8]) -> Result<Vec<Upload>> {
    looked_through(bytes, "a list of uploads", |root| {
        let uploads = root.all("Upload");
        uploads
            .map(|node| Some(Upload { key: node.text_of("Key")?, id: node.text_of("UploadId")? }))
            .collect()
    })
}

/// What an answer says went wrong, if that is what it says: also behind the code of success, when the work took long.
pub(crate) fn refusal(bytes: &[u8]) -> Option<Refusal> {
    let text = std::str::from_utf8(bytes).ok()?;
    let document = parsed(text)?;
    let root = document.root_element();
    let found = root.has_tag_name_of("Error").then_some(root)?;
    let plain =
        |name| found.text_of(name).unwrap_or_default().chars().map(printable).take(MESSAGE_MAX).collect();
    Some(Refusal { code: plain("Code"), message: plain("Message") })
}

fn printable(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}

fn parsed(text: &str) -> Option<Document<'_>> {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(text.trim_start(), options).ok()
}

fn looked_through<T>(bytes: &[u8], what: &str, look: impl FnOnce(Node<'_, '_>) -> Option<T>) -> Result<T> {
    let document = std::str::from_utf8(bytes).ok().and_then(parsed);
    let found = document.as_ref().and_then(|document| look(document.root_element()));
    found.ok_or_else(|| {
        ObjectError::new(Trouble::Other, format!("the store answered with something else than {what}"))
    })
}

/// Looking at elements by their names, whatever namespace a store puts them in.
trait Named<'a, 'input: 'a> {
    fn has_tag_name_of(&self, name: &str) -> bool;
    fn all(&self, name: &'static str) -> impl Iterator<Item = Node<'a, 'input>>;
    fn text_of(&self, name: &'static str) -> Option<String>;
}

impl<'a, 'input: 'a> Named<'a, 'input> for Node<'a, 'input> {
    fn has_tag_name_of(&self, name: &str) -> bool {
        self.tag_name().name() == name
    }

    fn all(&self, name: &'static str) -> impl Iterator<Item = Node<'a, 'input>> {
        self.children().filter(move |child| child.has_tag_name_of(name))
    }

    fn text_of(&self, name: &'static str) -> Option<String> {
        Some(self.all(name).next()?.text().unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
        <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><IsTruncated>true</IsTruncated>\
        <Contents><Key>run/a&amp;b.pack</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>\
        <ETag>&quot;9a0&quot;</ETag><Size>434234</Size></Contents>\
        <Contents><Key>run/c</Key><Size>0</Size></Contents><NextContinuationToken>t+/=</NextContinuationToken>\
        </ListBucketResult>";

    #[test]
    fn a_page_of_a_listing_is_read() {
        let page = page(PAGE.as_bytes()).unwrap();
        let stamp = "434234 2026-01-02T03:04:05.000Z \"9a0\"".to_owned();
        assert_eq!(page.objects[0], Listed { key: "run/a&b.pack".to_owned(), size: 434_234, stamp });
        assert_eq!((page.objects.len(), page.next.as_deref()), (2, Some("t+/=")));
    }

    #[test]
    fn uploads_and_errors_are_read() {
        let begun = "<InitiateMultipartUploadResult><Key>k</Key><UploadId>id</UploadId></InitiateMultipartUploadResult>";
        assert_eq!(upload_id(begun.as_bytes()).unwrap(), "id");
        let list = "<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>1</UploadId></Upload>\
                    <Upload><UploadId>2</UploadId><Key>l</Key></Upload></ListMultipartUploadsResult>";
        assert_eq!(uploads(list.as_bytes()).unwrap()[1], Upload { key: "l".to_owned(), id: "2".to_owned() });
        let error =
            "  \n<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>gone\n</Message></Error>";
        let expected = Refusal { code: "NoSuchBucket".to_owned(), message: "gone ".to_owned() };
        assert_eq!(refusal(error.as_bytes()), Some(expected));
        assert_eq!(refusal(PAGE.as_bytes()), None);
    }

    #[test]
    fn whatever_a_store_answers_there_is_no_panic() {
        let bomb = format!(
            "<!DOCTYPE x [<!ENTITY a \"{}\">]><ListBucketResult>&a;</ListBucketResult>",
            "y".repeat(999)
        );
        let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
        let endless = PAGE.replace("<NextContinuationToken>t+/=</NextContinuationToken>", "");
        let large = PAGE.replace("434234", "99999999999999999999");
        for hostile in ["", "<", "\u{0}", "<ListBucketResult>", "<html/>", &bomb, &deep, &endless, &large] {
            assert!(page(hostile.as_bytes()).is_err(), "{}", &hostile[..hostile.len().min(40)]);
            assert!(upload_id(hostile.as_bytes()).is_err());
            let _ = (uploads(hostile.as_bytes()), refusal(hostile.as_bytes()));
        }
        for end in 0..PAGE.len() {
            assert!(page(&PAGE.as_bytes()[..end]).is_err(), "{end}");
        }
        assert!(page(&[0xff; 40]).is_err());
    }
}
