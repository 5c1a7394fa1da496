//! `kc get … -w`: a table, and then the rows that change. In: a type and names, and what the client was told before, which it echoes:
//! nothing is kept here. Out: rows that look different, and what to come back with. Clients that print only the last answer cannot watch:
//! for them the flag waits until nothing shown is under way. Used by `kc get` and `kc events`.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use shardplane_model::state::Scope;

use super::{
    super::verbs::Session,
    answer::{Answer, Failure, Retry},
    args::{Args, Output},
    columns, get, lookup, operator,
    table::Rows,
    types::{self, OperatorType, Type},
};

/// First word of `retryParams.operation` of a watch.
pub const WORD: &str = "watch";

/// Most rows of a watch: the client carries a digest of each.
const MOST: usize = 2_000;

/// Columns that change although nothing happens.
const RESTLESS: [&str; 2] = ["AGE", "LAST-REPORT"];

/// What the client was told.
enum Told {
    /// Nothing yet.
    Nothing,
    /// A digest of each row, by id.
    Rows(BTreeMap<String, String>),
    /// Everything up to this event; events never change.
    Events(u64),
}

impl Told {
    /// What the client echoes.
    ///
    /// # Errors
    /// When it is not what it was told.
    fn of(retry: Option<&Retry>) -> Result<Self, Failure> {
        let Some(retry) = retry else { return Ok(Told::Nothing) };
        let wrong = || Failure::Text("retryParams are not what was answered before".to_owned());
        if let Some(number) = retry.resource_id.strip_prefix('>') {
            return number.parse().map(Told::Events).map_err(|_| wrong());
        }
        let pairs = retry.resource_id.split(',').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            pair.split_once('=').map(|(id, digest)| (id.to_owned(), digest.to_owned())).ok_or_else(wrong)
        });
        Ok(Told::Rows(pairs.collect::<Result<_, _>>()?))
    }

    fn of_rows(events: bool, rows: &Rows) -> Self {
        if events {
            let newest = rows.rows.iter().filter_map(|(id, _)| id.parse().ok()).max();
            return Told::Events(newest.unwrap_or_default());
        }
        Told::Rows(rows.rows.iter().map(|(id, cells)| (id.clone(), digest(&rows.header, cells))).collect())
    }

    fn knows(&self, header: &[&str], id: &str, cells: &[String]) -> bool {
        match self {
            Told::Nothing => false,
            Told::Rows(rows) => rows.get(id).is_some_and(|told| *told == digest(header, cells)),
            Told::Events(newest) => id.parse::<u64>().is_ok_and(|number| number <= *newest),
        }
    }

    fn text(&self) -> String {
        match self {
            Told::Nothing => String::new(),
            Told::Rows(rows) => {
                rows.iter().map(|(id, digest)| format!("{id}={digest}")).collect::<Vec<_>>().join(",")
            }
            Told::Events(newest) => format!(">{newest}"),
        }
    }
}

/// Enough of a hash to tell a row from its successor.
fn digest(header: &[&str], cells: &[String]) -> String {
    let lasting = header.iter().zip(cells).filter(|(name, _)| !RESTLESS.contains(name));
    let mut hash = Sha256::new();
    for (_, cell) in lasting {
        hash.update(cell.as_bytes());
        hash.update([0]);
    }
    hex::encode(hash.finalize().get(..6).unwrap_or_default())
}

/// One round. `prints_each` says whether the client prints every answer, or the last alone.
///
/// # Errors
/// As `kc get`; several types at once, another format than a table, or too many rows.
pub fn run(
    session: &Session,
    args: &Args,
    retry: Option<&Retry>,
    prints_each: bool,
) -> Result<Answer, Failure> {
    let told = Told::of(retry)?;
    let (kind, rows) = rows(session, args, matches!(told, Told::Nothing))?;
    let come_back = |told: &Told| {
        Some(Retry {
            kind: args.words.first().cloned().unwrap_or_default(),
            change_request_id: String::new(),
            resource_id: told.text(),
            operation: WORD.to_owned(),
        })
    };
    if !prints_each {
        let retry = if under_way(&rows) { come_back(&Told::Rows(BTreeMap::new())) } else { None };
        let stdout = if retry.is_none() { rows.text() } else { String::new() };
        return Ok(Answer { retry, ..Answer::printed(stdout) });
    }
    let events = kind == Type::Operator(OperatorType::Event);
    if rows.rows.len() > MOST && !events {
        return Err(Failure::Text(format!(
            "there are {} rows; -w watches at most {MOST}: name some, or use -n <folder>",
            rows.rows.len()
        )));
    }
    let now = Told::of_rows(events, &rows);
    Ok(Answer { retry: come_back(&now), ..Answer::printed(difference(&told, &rows)) })
}

/// The whole table at first, then lines of it, and a line for each row that is gone.
fn difference(told: &Told, rows: &Rows) -> String {
    let text = rows.text();
    let nothing = match told {
        Told::Nothing => true,
        Told::Rows(rows) => rows.is_empty(),
        Told::Events(newest) => *newest == 0,
    };
    if nothing {
        return text;
    }
    let lines = text.lines().skip(1).zip(&rows.rows);
    let changed = lines.filter(|(_, (id, cells))| !told.knows(&rows.header, id, cells));
    let mut text: String = changed.map(|(line, _)| format!("{line}\n")).collect();
    if let Told::Rows(before) = told {
        let gone = before.keys().filter(|id| !rows.rows.iter().any(|(there, _)| there == *id));
        text.extend(gone.map(|id| format!("{id} is gone\n")));
    }
    text
}

/// Whether something shown has not come to its end yet.
fn under_way(rows: &Rows) -> bool {
    let column = rows.header.iter().position(|name| matches!(*name, "STATE" | "PHASE"));
    let busy = |cell: &String| matches!(cell.as_str(), "scheduling" | "reconciling" | "running");
    column.is_some_and(|at| rows.rows.iter().any(|(_, cells)| cells.get(at).is_some_and(busy)))
}

/// What there is now. A name that is gone later is a row that is gone.
fn rows(session: &Session, args: &Args, first: bool) -> Result<(Type, Rows), Failure> {
    let Some((words, names)) = args.words.split_first() else {
        return Err(Failure::Text("which type? kc get <type> [name] -w".to_owned()));
    };
    if args.quiet || !matches!(args.output, Output::Table | Output::Wide) {
        return Err(Failure::Text(
            "-w shows a table; GET /api/v1/<type>/<id>:watch tells changes as JSON".to_owned(),
        ));
    }
    let wide = args.output == Output::Wide;
    let kinds = types::list(words)?;
    let [kind] = kinds.as_slice() else {
        return Err(Failure::Text("-w watches one type at a time".to_owned()));
    };
    let rows = match kind {
        Type::Operator(kind) => match operator::select(session, *kind, names, args) {
            Err(Failure::Text(_)) if !first => Rows { header: Vec::new(), rows: Vec::new() },
            found => found?.rows(wide),
        },
        Type::Public(kind) => {
            session.caller.needs(&[Scope::Read])?;
            let folder =
                if args.all_folders { None } else { lookup::folder(&session.state, args.folder.as_deref())? };
            let found = match get::found(session, *kind, names, folder) {
                Err(_) if !first => Vec::new(),
                found => found?,
            };
            columns::rows(session, *kind, &found, wide, false)
        }
    };
    Ok((*kind, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[(&str, &str, &str)]) -> Rows {
        let row = |(id, state, age): &(&str, &str, &str)| {
            ((*id).to_owned(), vec![(*id).to_owned(), (*state).to_owned(), (*age).to_owned()])
        };
        Rows { header: vec!["NAME", "STATE", "AGE"], rows: cells.iter().map(row).collect() }
    }

    fn echoed(rows: &Rows) -> Told {
        let told = Told::of_rows(false, rows);
        let retry = Retry {
            kind: "vpc".to_owned(),
            change_request_id: String::new(),
            resource_id: told.text(),
            operation: WORD.to_owned(),
        };
        Told::of(Some(&retry)).unwrap()
    }

    #[test]
    fn the_table_comes_once_and_then_what_changes() {
        let first = rows(&[("a", "stable", "1s"), ("b", "stable", "1s"), ("c", "stable", "1s")]);
        assert_eq!(difference(&Told::Nothing, &first).lines().count(), 4);
        let older = rows(&[("a", "stable", "3s"), ("b", "stable", "3s"), ("c", "stable", "3s")]);
        assert_eq!(difference(&echoed(&first), &older), "", "age alone is no change");
        let next = rows(&[("a", "stable", "5s"), ("b", "reconciling", "5s")]);
        assert_eq!(difference(&echoed(&older), &next), "b      reconciling   5s\nc is gone\n");
        assert!(under_way(&next) && !under_way(&first));
        assert_eq!(difference(&echoed(&rows(&[])), &first).lines().count(), 4, "from an empty table on");
    }

    #[test]
    fn of_events_only_new_ones_come() {
        let event = |number: &str| (number.to_owned(), vec!["1s".to_owned()]);
        let rows = Rows { header: vec!["AGE"], rows: vec![event("7"), event("8")] };
        assert_eq!(difference(&Told::Events(7), &rows), "1s\n");
        assert_eq!(Told::of_rows(true, &rows).text(), ">8");
    }
}
