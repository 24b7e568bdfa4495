//! Text templates with placeholders for the values that differ between jobs.

/// A text with placeholders.
#[derive(Clone, Debug)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    /// A gap, by the index of its mark.
    Gap(usize),
}

impl Template {
    /// Turns every mark in a text into a gap. If two marks begin at the same place, the first in the list wins.
    pub fn parse(text: &str, marks: &[&str]) -> Self {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((at, gap)) = marks
            .iter()
            .enumerate()
            .filter_map(|(gap, mark)| Some((rest.find(mark)?, gap)))
            .min()
        {
            pieces.push(Piece::Text(rest[..at].to_owned()));
            pieces.push(Piece::Gap(gap));
            rest = &rest[at + marks[gap].len()..];
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Self(pieces)
    }

    /// Fills the placeholders, each with the value at the index of its mark.
    pub fn fill(&self, values: &[&str]) -> String {
        let mut text = String::with_capacity(4096);
        for piece in &self.0 {
            text.push_str(match piece {
                Piece::Text(text) => text,
                Piece::Gap(gap) => values[*gap],
            });
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_becomes_a_gap_that_its_value_fills() {
        let template = Template::parse("a <name> of <uid>, <name>", &["<uid>", "<name>", "<x>"]);
        assert_eq!(template.fill(&["1", "job", ""]), "a job of 1, job");
        assert_eq!(template.fill(&["", "", ""]), "a  of , ");
    }

    #[test]
    fn of_marks_that_begin_alike_the_first_is_meant() {
        let template = Template::parse("spark-12", &["spark-12", "spark"]);
        assert_eq!(template.fill(&["x", "y"]), "x");
    }
}
