//! Rows as people write them: columns by their snake_case names, numbers, and names where a column holds an index.

use super::error::{LabError, NameError};
use super::names::Tables;
use portolan_policy::{CostColumn, GroupColumn, NEVER, RequestColumn, RouteColumn};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// A value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// The value itself.
    Number(u32),
    /// A name that stands for an index, or `never`.
    Name(String),
}

/// The columns that a row may have.
pub trait Columns: Copy + 'static {
    /// What a row of these columns is called.
    const ROW: &'static str;
    /// Every column, in order.
    fn all() -> Vec<String>;
}

macro_rules! columns {
    ($($column:ident is $word:literal),*) => { $(
        impl Columns for $column {
            const ROW: &'static str = $word;
            fn all() -> Vec<String> {
                Self::ALL.iter().map(|column| column.name().replace('-', "_")).collect()
            }
        }
    )* };
}

columns!(RequestColumn is "request", RouteColumn is "route", CostColumn is "cost", GroupColumn is "group");

/// A row with the columns that were written; the others are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRow<C> {
    cells: Vec<(usize, String, Cell)>,
    columns: PhantomData<C>,
}

impl<C> Default for NamedRow<C> {
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            columns: PhantomData,
        }
    }
}

impl<C: Columns> NamedRow<C> {
    /// The written columns with their values, names resolved.
    pub fn resolve(&self, tables: &mut Tables) -> Result<Vec<(usize, u32)>, LabError> {
        let value = |(column, name, cell): &(usize, String, Cell)| {
            let value = match cell {
                Cell::Number(value) => *value,
                Cell::Name(text) if text == "never" => NEVER,
                Cell::Name(text) => index_of(name, text, tables)?,
            };
            Ok((*column, value))
        };
        self.cells.iter().map(value).collect()
    }

    /// All columns in order, those that were not written as zero.
    pub fn to_cells(&self, tables: &mut Tables) -> Result<Vec<u32>, LabError> {
        let mut cells = vec![0; C::all().len()];
        for (column, value) in self.resolve(tables)? {
            cells[column] = value;
        }
        Ok(cells)
    }

    /// As it was written.
    pub fn written(&self) -> String {
        let word = |(_, name, cell): &(usize, String, Cell)| match cell {
            Cell::Number(NEVER) => format!("{name}: never"),
            Cell::Number(value) => format!("{name}: {value}"),
            Cell::Name(text) => format!("{name}: {text}"),
        };
        let words: Vec<_> = self.cells.iter().map(word).collect();
        format!("{{{}}}", words.join(", "))
    }
}

/// The number that a name in `column` stands for.
fn index_of(column: &str, name: &str, tables: &mut Tables) -> Result<u32, LabError> {
    match column {
        "prefill_site" | "decode_site" | "origin_site" | "site" => tables.site(name),
        "jurisdiction" => tables.jurisdiction(name),
        "model" => tables.model(name),
        "user_class" => tables.user_class(name),
        "kind" => one_of("kind", name, &["interactive", "batch", "prewarm"]),
        "prefill_mode" => one_of(
            "prefill mode",
            name,
            &["auto", "local_only", "remote_preferred", "remote_required"],
        ),
        _ if name.parse::<u64>().is_ok() => Err(NameError::Quoted(name.to_owned())),
        "tenant" => Err(NameError::Tenant(name.to_owned())),
        _ => Err(NameError::NoNumber(name.to_owned())),
    }
    .map_err(|problem| LabError::value(column, problem.to_string()))
}

fn one_of(what: &'static str, name: &str, words: &[&str]) -> Result<u32, NameError> {
    let found = (0..).zip(words).find(|(_, word)| **word == name);
    let unknown = || NameError::Unknown {
        what,
        name: name.to_owned(),
        known: words.iter().map(|word| (*word).to_owned()).collect(),
    };
    found.map(|(index, _)| index).ok_or_else(unknown)
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Cell;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0 to 4294967295, or a name")
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Cell, E> {
                let number = u32::try_from(value);
                number
                    .map(Cell::Number)
                    .map_err(|_| E::custom(format!("{value} is more than 4294967295")))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Cell, E> {
                let number = u64::try_from(value).map_err(|_| E::custom(format!("{value} is negative")))?;
                self.visit_u64(number)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Cell, E> {
                Ok(Cell::Name(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<'de, C: Columns> Deserialize<'de> for NamedRow<C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<C>(PhantomData<C>);
        impl<'de, C: Columns> Visitor<'de> for Reader<C> {
            type Value = NamedRow<C>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "the columns of a {} by name, as in {{{}: 7}}",
                    C::ROW,
                    C::all()[0]
                )
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedRow<C>, A::Error> {
                let known = C::all();
                let mut row = NamedRow::default();
                while let Some(key) = map.next_key::<String>()? {
                    let name = key.replace('-', "_");
                    let Some(column) = known.iter().position(|column| *column == name) else {
                        let list = known.join(", ");
                        let text = format!("a {} has no column {key:?}; it has {list}", C::ROW);
                        return Err(A::Error::custom(text));
                    };
                    row.cells.push((column, name, map.next_value()?));
                }
                Ok(row)
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Result<NamedRow<RouteColumn>, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn columns_go_to_their_places_and_names_to_their_indices() {
        let row =
            route(r#"{"decode-site": "paris", "prefill_us": "never", "prefill_site": "paris"}"#).unwrap();
        let mut tables = Tables::open();
        tables.site("virginia").unwrap();
        let cells = row.to_cells(&mut tables).unwrap();
        assert_eq!(
            (cells.len(), cells[0], cells[2], cells[7]),
            (RouteColumn::COUNT, 1, 1, NEVER)
        );
        assert_eq!(
            row.written(),
            "{decode_site: paris, prefill_us: never, prefill_site: paris}"
        );
    }

    #[test]
    fn an_unknown_column_is_refused_with_the_list_and_the_line() {
        let error = route("{\n\"prefil_site\": 1}").unwrap_err().to_string();
        assert!(
            error.contains("no column \"prefil_site\"") && error.contains("price_micros"),
            "{error}"
        );
        assert!(error.contains("line 2"), "{error}");
        for (text, says) in [
            (r#"{"queue_us": -1}"#, "negative"),
            (r#"{"queue_us": 4294967296}"#, "more than 4294967295"),
            (r#"{"queue_us": 1.5}"#, "whole number"),
        ] {
            let error = route(text).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let row = route(r#"{"queue_us": "soon"}"#).unwrap();
        let error = row.to_cells(&mut Tables::open()).unwrap_err().to_string();
        assert!(error.starts_with("queue_us: \"soon\""), "{error}");
        let error = route(r#"{"queue_us": "100"}"#)
            .unwrap()
            .to_cells(&mut Tables::open());
        assert!(error.unwrap_err().to_string().contains("write 100 without"));
        let request: NamedRow<RequestColumn> = serde_json::from_str(r#"{"tenant": "acme"}"#).unwrap();
        let error = request.to_cells(&mut Tables::open()).unwrap_err().to_string();
        assert!(error.contains("names: {tenant: acme}"), "{error}");
    }
}
