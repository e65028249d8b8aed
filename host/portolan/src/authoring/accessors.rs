//! Typed accessors for the contract's columns, so that an author in any language sees names instead of indices.
//!
//! Generated from the enums of `host/policy/src/column.rs`, the one list of columns.

use super::Language;
use portolan_policy::{CostColumn, GroupColumn, RequestColumn, RouteColumn};

/// A row type of the contract: the marker in the templates, the prefix of C's functions, its columns in order.
struct RowType {
    marker: &'static str,
    prefix: &'static str,
    columns: Vec<String>,
}

fn row_types() -> [RowType; 4] {
    [
        RowType {
            marker: "@REQUEST_ACCESSORS@",
            prefix: "request",
            columns: RequestColumn::ALL.iter().map(|column| column.name()).collect(),
        },
        RowType {
            marker: "@ROUTE_ACCESSORS@",
            prefix: "route",
            columns: RouteColumn::ALL.iter().map(|column| column.name()).collect(),
        },
        RowType {
            marker: "@COST_ACCESSORS@",
            prefix: "cost",
            columns: CostColumn::ALL.iter().map(|column| column.name()).collect(),
        },
        RowType {
            marker: "@GROUP_ACCESSORS@",
            prefix: "group",
            columns: GroupColumn::ALL.iter().map(|column| column.name()).collect(),
        },
    ]
}

/// `template` with an accessor a column in place of each row type's marker.
pub(super) fn fill(language: Language, template: &str) -> String {
    row_types().iter().fold(template.to_owned(), |text, row| {
        let accessors: Vec<_> = (0..)
            .zip(&row.columns)
            .map(|(index, name)| accessor(language, row.prefix, name, index))
            .collect();
        text.replace(row.marker, accessors.join(separator(language)).trim_end())
    })
}

const fn separator(language: Language) -> &'static str {
    match language {
        Language::Python => "\n",
        Language::Rust | Language::Js | Language::C => "",
    }
}

fn accessor(language: Language, prefix: &str, column: &str, index: usize) -> String {
    let snake = column.replace('-', "_");
    match language {
        // The SDK has views of its own.
        Language::Rust => String::new(),
        Language::Js => format!("  get {}() {{ return this.at({index}); }}\n", camel(column)),
        Language::Python => {
            format!("    @property\n    def {snake}(self) -> int:\n        return self._at({index})\n")
        }
        Language::C => format!(
            "static inline uint32_t {prefix}_{snake}({prefix}_row row) {{ return portolan_cell(row.row, {index}); }}\n"
        ),
    }
}

fn camel(column: &str) -> String {
    let mut words = column.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let mut letters = word.chars();
        let capital = letters.next().map(|letter| letter.to_ascii_uppercase());
        name + &capital.into_iter().chain(letters).collect::<String>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_its_name_and_index_in_every_language() {
        let template = "@ROUTE_ACCESSORS@";
        let js = fill(Language::Js, template);
        assert!(js.contains("get prefillSite() { return this.at(0); }"), "{js}");
        assert!(js.contains("get priceMicros() { return this.at(22); }"), "{js}");
        assert_eq!(js.lines().count(), RouteColumn::COUNT);
        let python = fill(Language::Python, template);
        assert!(python.contains("def price_micros(self) -> int:\n        return self._at(22)"));
        let c = fill(Language::C, template);
        assert!(c.contains("uint32_t route_price_micros(route_row row)"));
        assert_eq!(c.lines().count(), RouteColumn::COUNT);
    }
}
