//! Tests of forms of paths, on the half that is built.
//!
//! Owns: the cases.
//! Never: assumes a system, except in the name of a function.

use super::*;

#[test]
fn path_of_windows_has_one_uri() {
    for (path, uri) in [
        (r"C:\a b\ä%.txt", "/c:/a%20b/%C3%A4%25.txt"),
        (r"c:\a b\ä%.txt", "/c:/a%20b/%C3%A4%25.txt"),
        (r"\\?\C:\x", "/c:/x"),
        (r"C:/x/y", "/c:/x/y"),
        (r"C:\x (1)\y&z!#.txt", "/c:/x%20(1)/y&z!%23.txt"),
        (r"C:\", "/c:/"),
        (r"C:", "/c:/"),
        (r"\\server\share\x y", "server/share/x%20y"),
        (r"\\?\UNC\server\share\x", "server/share/x"),
        (r"\\?\C:\nul", "/c:/nul"),
    ] {
        assert_eq!(windows::to_uri(path), uri, "{path}");
    }
    assert_eq!(windows::escaped(r"a\b c"), "a/b%20c");
}

#[test]
fn uri_of_a_drive_is_a_path_in_every_spelling() {
    for uri in ["/c:/a%20b/x", "/C:/a%20b/x", "/c%3A/a%20b/x", "/C%3a/a%20b/x"] {
        assert_eq!(windows::of_uri(uri).as_deref(), Ok(r"C:\a b\x"), "{uri}");
    }
    for (uri, path) in [
        ("/c:", r"C:\"),
        ("/c:/", r"C:\"),
        ("/c:/x/../y/", r"C:\x\..\y\"),
        ("/z:/%C3%A4", r"Z:\ä"),
        // Only whole names are devices.
        ("/c:/console/com10/com", r"C:\console\com10\com"),
        // Decoded once.
        ("/c:/%2541", r"C:\%41"),
    ] {
        assert_eq!(windows::of_uri(uri).as_deref(), Ok(path), "{uri}");
        assert_eq!(windows::to_uri(path), windows::to_uri(&windows::of_uri(uri).unwrap()), "{uri}");
    }
}

#[test]
fn uri_that_windows_would_take_for_another_file_is_refused() {
    for uri in [
        "/x/y",
        "/",
        "//server/share/x",
        "/cc:/x",
        "/c:x",
        "/%C3%A4:/x",
        "/c:/a%5Cb",
        r"/c:\x",
        "/c:/a%2fb",
        "/c:/a%00",
        "/c:/file.txt:stream",
        "/c:/file.txt::$DATA",
        "/c:/d:/x",
        "/c:/x%3F",
        "/c:/x*",
        "/c:/x%0A",
        "/c:/NUL",
        "/c:/nul.txt",
        "/c:/x/con",
        "/c:/COM1.log",
        "/c:/lpt%C2%B9",
        "/c:/aux%20.txt",
        "/c:/x.",
        "/c:/x%20",
        "/c:/.../x",
        "/c:/%FF",
    ] {
        assert!(windows::of_uri(uri).is_err(), "{uri}: {:?}", windows::of_uri(uri));
    }
    assert!(windows::of_uri(&format!("/c:/{}", "x".repeat(300))).is_ok());
    assert!(windows::of_uri(&format!("/c:/{}", "x".repeat(100_000))).is_err());
}

#[test]
fn long_form_is_shortened_where_both_name_one_file() {
    let long = format!(r"\\?\C:\{}", "x".repeat(250));
    for (path, short) in [
        (r"\\?\C:\x y\z", Some(r"C:\x y\z")),
        (r"\\?\C:\", Some(r"C:\")),
        (r"\\?\UNC\server\share\x", Some(r"\\server\share\x")),
        (r"\\?\C:\x\nul", None),
        (r"\\?\C:\x.", None),
        (r"\\?\C:\x\..", None),
        (r"\\?\Volume{b75e2c83}\x", None),
        (r"C:\x", None),
        (&long, None),
    ] {
        assert_eq!(windows::shortened(path).as_deref(), short, "{path}");
    }
}

#[test]
fn path_of_unix_and_its_uri_are_the_same_bytes() {
    let bytes = b"/a b/\xff\xc3\xa4%\\:";
    let uri = unix::to_uri(bytes);
    assert_eq!(uri, "/a%20b/%FF%C3%A4%25%5C%3A");
    assert_eq!(unix::of_uri(&uri).as_deref(), Ok(&bytes[..]));
    assert!(unix::of_uri("/a%2fb").is_err() && unix::of_uri("/a%00").is_err());
}

#[test]
fn path_of_this_system_is_found_again_by_its_uri() {
    let folder = tempfile::tempdir().unwrap();
    let file = canonical(folder.path()).unwrap().join("a b");
    let uri = to_uri(&file);
    assert_eq!(of_uri(&uri).as_deref(), Ok(&*file), "{uri}");
    assert_eq!(&*from_bytes("ä".as_bytes()), "ä");
}
