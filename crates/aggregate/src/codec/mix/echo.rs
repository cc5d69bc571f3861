//! The echo: a run of values that the block holds already, forwards, backwards or across rows.
//!
//! Relies on nothing. The idea: symmetric problems repeat their fields mirrored and transposed, and ranks share halos, so
//! the last value is looked up in what is known, and the step (along a row, a column or a plane, in either direction)
//! that led to it there from the value before leads on to the prediction.

/// Bits of the table of places.
const TABLE_BITS: u32 = 18;
/// Places that are kept per hash: halos and symmetries repeat a value in different surroundings.
const WAYS: usize = 4;

pub(in crate::codec) struct Echo {
    /// Bits at the lower end that may differ between a value and its echo.
    blur: u32,
    values: Vec<u64>,
    places: Vec<[u32; WAYS]>,
    strides: [isize; 6],
    /// Place of the predicted value, the step to the next, and how many values agreed.
    followed: Option<(usize, isize, u32)>,
    width: usize,
    column: usize,
    /// The step that was right last.
    stride: isize,
    /// Places that echoed the first values of the last two rows.
    origins: [Option<isize>; 2],
}

impl Echo {
    pub(in crate::codec) fn new(blur: u32) -> Self {
        let places = vec![[u32::MAX; WAYS]; 1 << TABLE_BITS];
        Self {
            blur,
            values: Vec::new(),
            places,
            strides: [1, -1, 0, 0, 0, 0],
            followed: None,
            width: 1,
            column: 0,
            stride: 1,
            origins: [None; 2],
        }
    }

    /// A member of this many columns and rows begins.
    pub(in crate::codec) fn begin(&mut self, height: usize, width: usize) {
        let row = isize::try_from(width).unwrap_or(0);
        let plane = isize::try_from(width.saturating_mul(height)).unwrap_or(0);
        self.strides = [1, -1, row, -row, plane, -plane];
        (self.width, self.column, self.origins) = (width.max(1), 0, [None; 2]);
    }

    /// The value that comes next if the echo goes on, and for how long it has gone on.
    pub(in crate::codec) fn predict(&self) -> Option<(u64, u32)> {
        let (place, _, length) = self.followed?;
        Some((*self.values.get(place)?, length))
    }

    /// A value that is known.
    pub(in crate::codec) fn value(&self, place: usize) -> Option<u64> {
        self.values.get(place).copied()
    }

    /// Values that are known.
    pub(in crate::codec) fn len(&self) -> usize {
        self.values.len()
    }

    pub(in crate::codec) fn learn(&mut self, value: u64) {
        let followed = self.followed.take();
        let right =
            self.predicted(followed).is_some_and(|predicted| predicted.abs_diff(value) < 1 << self.blur);
        let before = self.values.last().copied();
        self.values.push(value);
        self.followed = match followed {
            Some((place, stride, length)) if right => {
                self.stride = stride;
                place.checked_add_signed(stride).map(|place| (place, stride, length + 1))
            }
            _ => before.and_then(|before| self.find(value, before)),
        };
        self.column += 1;
        if self.column >= self.width {
            self.end_row();
        }
        let slot = self.slot(value);
        if let (Some(places), Ok(here)) = (self.places.get_mut(slot), u32::try_from(self.values.len() - 1)) {
            places.rotate_right(1);
            places[0] = here;
        }
    }

    /// Where a row was echoed says where the next one begins, if two rows were.
    fn end_row(&mut self) {
        let width = isize::try_from(self.width).unwrap_or(0);
        let origin = self.followed.and_then(|(place, stride, length)| {
            let back = stride.checked_mul(width)?;
            Some((isize::try_from(place).ok()?.checked_sub(back)?, stride, length))
        });
        self.column = 0;
        self.origins = [origin.map(|(origin, _, _)| origin), self.origins[0]];
        self.followed = match (self.origins, origin) {
            ([Some(last), Some(before)], Some((_, stride, length))) => {
                let next = last.checked_mul(2).and_then(|twice| twice.checked_sub(before));
                next.and_then(|next| usize::try_from(next).ok()).map(|next| (next, stride, length.min(8)))
            }
            _ => self.followed,
        };
    }

    fn predicted(&self, followed: Option<(usize, isize, u32)>) -> Option<u64> {
        followed.and_then(|(place, _, _)| self.values.get(place)).copied()
    }

    fn slot(&self, value: u64) -> usize {
        usize::try_from((value >> self.blur).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TABLE_BITS))
            .unwrap_or(0)
    }

    /// Where `value` was lately, and the step by which it followed `before` there.
    fn find(&self, value: u64, before: u64) -> Option<(usize, isize, u32)> {
        let places =
            self.places.get(self.slot(value))?.iter().filter_map(|place| usize::try_from(*place).ok());
        let known = || places.clone().filter(|place| self.is_like(*place, value));
        let led_here = known().find_map(|place| Some((place, self.step_from(before, place)?)));
        // A row's first value was led to by none; the step of the row before is likely.
        let guess = || known().next().filter(|_| self.column == 0).map(|place| (place, self.stride));
        let (place, stride) = led_here.or_else(guess)?;
        Some((place.checked_add_signed(stride)?, stride, 0))
    }

    fn is_like(&self, place: usize, value: u64) -> bool {
        self.values.get(place).is_some_and(|known| known >> self.blur == value >> self.blur)
    }

    /// The step by which one comes from a value `before` to `place`.
    fn step_from(&self, before: u64, place: usize) -> Option<isize> {
        let leads_here = |stride: &&isize| {
            let origin = place.checked_add_signed(-**stride);
            **stride != 0 && origin.is_some_and(|origin| self.is_like(origin, before))
        };
        self.strides.iter().find(leads_here).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right_after(values: &[u64], width: usize) -> usize {
        let mut echo = Echo::new(0);
        echo.begin(width, width);
        let mut right = 0;
        for value in values {
            right += usize::from(echo.predict().is_some_and(|(predicted, _)| predicted == *value));
            echo.learn(*value);
        }
        right
    }

    #[test]
    fn mirrored_and_transposed_fields_are_foreseen() {
        let field = |x: u64, y: u64| (x * 1000 + y).wrapping_mul(0x1234_5678_9abc_def1);
        let rows = |at: fn(u64, u64) -> (u64, u64)| (0..20).flat_map(move |y| (0..20).map(move |x| at(x, y)));
        for at in [|x, y| (x, y), |x, y| (19 - x, y), |x, y| (y, x), |x, y| (19 - y, 19 - x)]
            as [fn(u64, u64) -> _; 4]
        {
            let values: Vec<u64> = rows(|x, y| (x, y)).chain(rows(at)).map(|(x, y)| field(x, y)).collect();
            let right = right_after(&values, 20);
            assert!(right > 300, "{right} of 400");
        }
    }
}
