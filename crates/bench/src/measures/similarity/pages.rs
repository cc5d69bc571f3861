//! Where an image is not zero, page by page.

use std::ops::Range;

/// Pages that are looked at, bytes: those of the machine that was dumped.
const PAGE: usize = 4096;

/// Bytes outside zero pages, counted up to each page.
pub struct NonZero {
    /// `before[i]`: bytes outside zero pages among the first `i` pages.
    before: Vec<usize>,
    length: usize,
}

impl NonZero {
    /// Looks at all pages of an image.
    pub fn of(image: &[u8]) -> Self {
        let mut before = vec![0];
        let mut sum = 0;
        for page in image.chunks(PAGE) {
            sum += if stdchk_reduce::is_zero(page) { 0 } else { page.len() };
            before.push(sum);
        }
        Self { before, length: image.len() }
    }

    /// Bytes outside zero pages in the whole image.
    pub fn total(&self) -> usize {
        self.up_to(self.length)
    }

    /// Bytes outside zero pages in a range.
    pub fn within(&self, range: Range<usize>) -> usize {
        self.up_to(range.end) - self.up_to(range.start)
    }

    fn up_to(&self, offset: usize) -> usize {
        let page = offset / PAGE;
        let count = |pages| self.before.get(pages).copied().unwrap_or(0);
        // The last page of an image may be short: from its end on, all of it counts.
        if offset == self.length {
            return count(self.before.len() - 1);
        }
        let in_page = if count(page + 1) > count(page) { offset % PAGE } else { 0 };
        count(page) + in_page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_zero_pages_do_not_count() {
        let mut image = vec![0; 3 * PAGE + 100];
        image[PAGE + 5] = 1;
        image[3 * PAGE + 99] = 1;
        let non_zero = NonZero::of(&image);
        assert_eq!(non_zero.total(), PAGE + 100);
        assert_eq!(non_zero.within(0..PAGE), 0);
        assert_eq!(non_zero.within(PAGE - 10..PAGE + 10), 10);
        assert_eq!(non_zero.within(2 * PAGE..3 * PAGE + 40), 40);
        assert_eq!(non_zero.within(0..image.len()), PAGE + 100);
    }

    #[test]
    fn an_image_of_whole_pages_counts_to_its_end() {
        let non_zero = NonZero::of(&[1; 2 * PAGE]);
        assert_eq!((non_zero.total(), non_zero.within(PAGE..2 * PAGE)), (2 * PAGE, PAGE));
        assert_eq!(NonZero::of(&[]).total(), 0);
    }
}
