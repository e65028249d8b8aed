//! A metrics page as load. Names come with a colon or, from collectors that rewrite it, with an underscore; with several
//! data-parallel ranks there is a line for each: counts add up, shares are averaged.

use super::Make;

/// What a page says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Scraped {
    /// Requests that wait.
    pub(super) waiting: f64,
    /// Requests that run.
    pub(super) running: f64,
    /// Share of KV room in use, 0 to 1.
    pub(super) kv_used: f64,
    /// When the process was started, in seconds since 1970.
    pub(super) started: Option<f64>,
    /// Tokens in a block.
    pub(super) block_tokens: Option<u32>,
    /// Whether any line of the engine's was there.
    pub(super) known: bool,
}

/// Reads a page in Prometheus' text form.
pub(super) fn scrape(make: Make, page: &str) -> Scraped {
    let mut scraped = Scraped::default();
    let (mut shares, mut share_lines) = (0.0, 0u32);
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.trim_end().rsplit_once(' ') else {
            continue;
        };
        let Ok(value) = value.parse::<f64>() else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if name == "process_start_time_seconds" {
            scraped.started = Some(value);
        }
        let prefix = match make {
            Make::Vllm => "vllm",
            Make::LlamaCpp => "llamacpp",
            Make::Sglang => "sglang",
        };
        let Some(name) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix([':', '_']))
        else {
            continue;
        };
        match (make, name) {
            (Make::Vllm, "num_requests_waiting")
            | (Make::LlamaCpp, "requests_deferred")
            | (Make::Sglang, "num_queue_reqs") => {
                scraped.waiting += value;
            }
            (Make::Vllm, "num_requests_running")
            | (Make::LlamaCpp, "requests_processing")
            | (Make::Sglang, "num_running_reqs") => {
                scraped.running += value;
            }
            (Make::Vllm, "kv_cache_usage_perc" | "gpu_cache_usage_perc")
            | (Make::LlamaCpp, "kv_cache_usage_ratio")
            | (Make::Sglang, "token_usage") => {
                shares += value;
                share_lines += 1;
            }
            (Make::Vllm, "cache_config_info") => {
                scraped.block_tokens = label(labels, "block_size").and_then(|size| size.parse().ok());
            }
            (Make::Sglang, "cache_config_info") => {
                scraped.block_tokens = label(labels, "page_size").and_then(|size| size.parse().ok());
            }
            _ => continue,
        }
        scraped.known = true;
    }
    if share_lines > 0 {
        scraped.kv_used = (shares / f64::from(share_lines)).clamp(0.0, 1.0);
    }
    scraped
}

/// The value of a label in `a="1",b="2"}`.
fn label<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    labels.split(',').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key.trim() == name).then(|| value.trim_end_matches('}').trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_and_several_ranks_are_read() {
        let page = |colon: &str| {
            format!(
                "# HELP x\nprocess_start_time_seconds 1.79597314394e+09\n\
                 vllm{colon}num_requests_running{{engine=\"0\"}} 2.0\nvllm{colon}num_requests_running{{engine=\"1\"}} 3.0\n\
                 vllm{colon}num_requests_waiting{{engine=\"0\"}} 1.0\n\
                 vllm{colon}num_requests_waiting_by_reason{{engine=\"0\",reason=\"capacity\"}} 7.0\n\
                 vllm{colon}kv_cache_usage_perc{{engine=\"0\"}} 0.2\nvllm{colon}kv_cache_usage_perc{{engine=\"1\"}} 0.4\n\
                 vllm{colon}cache_config_info{{block_size=\"32\",engine=\"0\"}} 1.0\n"
            )
        };
        for colon in [":", "_"] {
            let scraped = scrape(Make::Vllm, &page(colon));
            assert_eq!((scraped.running, scraped.waiting), (5.0, 1.0));
            assert!((scraped.kv_used - 0.3).abs() < 1e-9);
            assert_eq!(
                (scraped.block_tokens, scraped.started),
                (Some(32), Some(1_795_973_143.94))
            );
        }
        assert!(!scrape(Make::Vllm, "other 1\n").known);
    }

    #[test]
    fn sglang_has_names_of_its_own() {
        let page = |colon: &str| {
            format!(
                "sglang{colon}num_running_reqs{{tp_rank=\"0\"}} 3.0\nsglang{colon}num_queue_reqs{{tp_rank=\"0\"}} 2.0\n\
                 sglang{colon}token_usage{{tp_rank=\"0\"}} 0.25\n\
                 sglang{colon}cache_config_info{{num_pages=\"100\",page_size=\"64\"}} 1.0\n"
            )
        };
        for colon in [":", "_"] {
            let scraped = scrape(Make::Sglang, &page(colon));
            assert_eq!(
                (scraped.running, scraped.waiting, scraped.kv_used),
                (3.0, 2.0, 0.25)
            );
            assert_eq!((scraped.block_tokens, scraped.known), (Some(64), true));
        }
    }

    #[test]
    fn llama_cpp_has_names_of_its_own() {
        let page = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n";
        let scraped = scrape(Make::LlamaCpp, page);
        assert_eq!(
            (scraped.running, scraped.waiting, scraped.known),
            (1.0, 2.0, true)
        );
    }
}
