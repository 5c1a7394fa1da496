//! Tables as kubectl prints them: columns with blanks in between, no lines. In: a header and rows. Out: text. Used by the reading verbs.

use comfy_table::{ContentArrangement, Table, presets};
use shardplane_model::time::Timestamp;

/// A header, and rows with the id of what each is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// Names of the columns.
    pub header: Vec<&'static str>,
    /// Id and cells.
    pub rows: Vec<(String, Vec<String>)>,
}

impl Rows {
    /// As text; empty when there is no row.
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        render(&self.header, self.rows.iter().map(|(_, cells)| cells.clone()).collect())
    }
}

/// A table of these rows.
pub fn render<H: AsRef<str>>(header: &[H], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(|cell| cell.as_ref()));
    for row in rows {
        // A line break in a cell would tear the row apart, and an escape of somebody's description would steer the terminal.
        table.add_row(row.into_iter().map(|cell| match cell.replace(char::is_control, " ") {
            empty if empty.is_empty() => "-".to_owned(),
            cell => cell,
        }));
    }
    let columns = header.len();
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at + 1 == columns { 0 } else { 3 }));
    }
    let mut text: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    if text.is_empty() {
        text.push('\n');
    }
    text
}

/// How long ago something was, in the largest unit that says enough: `42s`, `7m`, `5h`, `3d`.
pub fn age(now: Timestamp, then: Timestamp) -> String {
    span(now.since(then).0 / 1000)
}

/// `1 host`, `2 hosts`.
pub fn count(amount: usize, one: &str) -> String {
    format!("{amount} {one}{}", if amount == 1 { "" } else { "s" })
}

/// So many seconds, as [`age`] writes them.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_do_not_steer_the_terminal() {
        let text = render(&["A"], vec![vec!["x\u{1b}[2Jy\r\nz\u{9b}1m".to_owned()]]);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }

    #[test]
    fn columns_are_apart_by_three_blanks_and_nothing_trails() {
        let text = render(
            &["NAME", "AGE"],
            vec![vec!["a-long-name".to_owned(), "1s".to_owned()], vec![String::new(), "2m".to_owned()]],
        );
        assert_eq!(text, "NAME          AGE\na-long-name   1s\n-             2m\n");
    }

    #[test]
    fn ages_are_short() {
        let now = Timestamp(1_000_000_000);
        for (before, text) in [(0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")] {
            assert_eq!(age(now, Timestamp(now.0 - before * 1000)), text);
        }
        assert_eq!(age(now, Timestamp(now.0 + 5)), "0s");
    }
}
