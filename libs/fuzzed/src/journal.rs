//! Any bytes as a file of the journal, and as the frames of a batch whose checksum is right: what is found lies within
//! the file, one piece after the other.

pub(crate) fn run(input: &[u8]) {
    let _ = journal::look(input);
    let file = journal::sealed(input);
    let found = journal::look(&file).unwrap_or_else(|error| panic!("the header is right: {error}"));
    let mut end = 0;
    for bytes in found.iter().filter_map(|found| found.bytes.clone()) {
        assert!(end <= bytes.start && bytes.start <= bytes.end && bytes.end <= file.len(), "{found:?}");
        end = bytes.end;
    }
}
