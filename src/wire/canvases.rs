//! URIs of canvases, and addresses of the pages that they show.
//!
//! Owns: the form of both.
//! Never: opens a page, or knows which canvases exist.

const SCHEME: &str = "ahp-canvas:";

/// Maximum length of the address of a page, in bytes.
const URL_BYTES_MAX: usize = 4 << 10;

/// Returns the URI of a canvas.
pub fn canvas_uri(id: &str) -> String {
    format!("{SCHEME}/{id}")
}

/// Returns whether a URI has the form of a canvas.
pub fn is_canvas(uri: &str) -> bool {
    uri.starts_with(SCHEME)
}

/// Returns whether a text is an absolute address of a page: `http` or `https`, with a host.
pub fn is_page_url(url: &str) -> bool {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#']));
    is_host
        && url.len() <= URL_BYTES_MAX
        && url.chars().all(|char| !char.is_control() && !char.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_url_is_absolute_and_of_the_web() {
        assert!(is_page_url("http://127.0.0.1:8080/?a#b") && is_page_url("https://a"));
        for url in [
            "",
            "http://",
            "https:///a",
            "http://?a",
            "file:///etc",
            "javascript:1",
            "/a",
            "http://a\u{1b}[m",
        ] {
            assert!(!is_page_url(url), "{url}");
        }
        let longest = |bytes: usize| format!("http://{}", "a".repeat(bytes - 7));
        assert!(is_page_url(&longest(URL_BYTES_MAX)) && !is_page_url(&longest(URL_BYTES_MAX + 1)));
    }
}
