//! Fetching a made-up set from a server on this machine: complete, interrupted, wrong, or missing.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ebb_fetch::{
    ArchiveFormat, DataFile, DataSource, FetchError, NoProgress, PinnedDigest, Progress, WrongFiles, check,
    get,
};

use crate::samples::{gzip, sha256};
use crate::server::{Server, full, not_found, ranged, response, truncated};
use crate::test_data_set::{
    IMAGES, LABELS, MEMBERS, TestDataSet, archive, published, request, tgz, urls, urls_nowhere,
};

#[test]
fn missing_files_are_fetched_and_a_second_call_requests_nothing() {
    let server = Server::start(|request| full(&published(request)));
    let trial = TestDataSet::new(&[urls(&server)]);
    let got = trial.get().unwrap();
    assert_eq!(got.fetched, ["images", "labels"]);
    assert_eq!(server.take_requests(), [request("/images.gz", None), request("/labels", None)]);
    trial.check_whole();
    assert_eq!(got.status.present, [trial.path("images.gz"), trial.path("labels")]);

    let (again, messages) = trial.get_with(WrongFiles::Refuse);
    assert_eq!(again.unwrap().fetched, [""; 0]);
    assert_eq!(messages, [format!("made-up is already present and correct: {}", trial.path("").display())]);
    assert_eq!(server.take_requests(), []);
}

#[test]
fn an_interrupted_download_is_resumed() {
    let server = Server::start(|request| match request.start() {
        None => truncated(&published(request), 5),
        Some(_) => ranged(&published(request), request),
    });
    let trial = TestDataSet::new(&[urls(&server)]);
    let n_bytes = gzip(IMAGES).len();
    let reason = format!("images.gz: broke off after 5 of {n_bytes} bytes");
    trial.check_failures(&[(&server.base(), &reason)]);
    assert_eq!(trial.files(), ["images.gz.part"]);
    assert_eq!(fs::read(trial.path("images.gz.part")).unwrap(), gzip(IMAGES)[..5]);
    assert_eq!(server.take_requests(), [request("/images.gz", None)]);

    trial.check_failures(&[(&server.base(), "labels: broke off after 5 of 10 bytes")]);
    assert_eq!(server.take_requests(), [request("/images.gz", Some("bytes=5-")), request("/labels", None)]);
    trial.get().unwrap();
    assert_eq!(server.take_requests(), [request("/labels", Some("bytes=5-"))]);
    trial.check_whole();
}

#[test]
fn another_mirror_resumes_an_interrupted_download() {
    let breaking = Server::start(|request| truncated(&published(request), 7));
    let good = Server::start(|request| ranged(&published(request), request));
    let trial = TestDataSet::new(&[urls(&breaking), urls(&good)]);
    trial.get().unwrap();
    trial.check_whole();
    assert_eq!(good.take_requests(), [request("/images.gz", Some("bytes=7-")), request("/labels", None)]);
}

#[test]
fn a_server_without_ranges_begins_again() {
    let server = Server::start(|request| full(&published(request)));
    let trial = TestDataSet::new(&[urls(&server)]);
    trial.put("labels.part", &LABELS[..4]);
    trial.get().unwrap();
    assert_eq!(server.take_requests(), [request("/images.gz", None), request("/labels", Some("bytes=4-"))]);
    trial.check_whole();
}

#[test]
fn a_part_of_another_file_is_discarded() {
    let server = Server::start(|request| ranged(&published(request), request));
    let trial = TestDataSet::new(&[urls(&server)]);
    trial.put("labels.part", b"xyz");
    trial.put("images.gz.part", &[0; 9000]);
    trial.get().unwrap();
    let requests = [
        request("/images.gz", Some("bytes=9000-")),
        request("/images.gz", None),
        request("/labels", Some("bytes=3-")),
        request("/labels", None),
    ];
    assert_eq!(server.take_requests(), requests);
    trial.check_whole();
}

#[test]
fn a_part_that_is_already_whole_is_used() {
    let server = Server::start(|request| ranged(&published(request), request));
    let trial = TestDataSet::new(&[urls(&server)]);
    trial.put("labels.part", LABELS);
    trial.get().unwrap();
    assert_eq!(server.take_requests(), [request("/images.gz", None), request("/labels", Some("bytes=10-"))]);
    trial.check_whole();
}

/// Reports when it first receives the message that a process waits.
struct NotifyWaiting(mpsc::Sender<()>);

impl Progress for NotifyWaiting {
    fn start(&mut self, _what: &str, _total: Option<u64>) {}
    fn advance(&mut self, _n_bytes: u64) {}
    fn finish(&mut self) {}
    fn message(&mut self, line: &str) {
        if line.ends_with("another process is fetching into it; waiting for that process") {
            self.0.send(()).unwrap();
        }
    }
}

#[test]
fn of_two_concurrent_calls_one_fetches_and_the_other_waits() {
    // The first file is sent only once the other process waits. Without a time limit a failure would never
    // end.
    let ((request_sent, request_received), (waits, is_waiting)) = (mpsc::channel(), mpsc::channel());
    let server = Server::start(move |request| {
        if request.path == "/images.gz" {
            request_sent.send(()).unwrap();
            let _ = is_waiting.recv_timeout(Duration::from_secs(20));
        }
        full(&published(request))
    });
    let trial = TestDataSet::new(&[urls(&server)]);
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| trial.get());
        request_received.recv().unwrap();
        let second = scope
            .spawn(|| get(&trial.data_set, &trial.folder, WrongFiles::Refuse, &mut NotifyWaiting(waits)));
        (first.join().unwrap(), second.join().unwrap())
    });
    assert_eq!(first.unwrap().fetched, ["images", "labels"]);
    assert_eq!(second.unwrap().fetched, [""; 0]);
    assert_eq!(server.take_requests(), [request("/images.gz", None), request("/labels", None)]);
    trial.check_whole();
    assert_eq!(trial.files(), ["images.gz", "labels"]);
}

#[test]
fn leftovers_are_removed_by_any_call() {
    let server = Server::start(|request| full(&published(request)));
    let trial = TestDataSet::new(&[urls(&server), archive(&server)]);
    trial.put("images.gz", &gzip(IMAGES));
    trial.put("labels.part", b"01");
    trial.put("all.tar.gz.part", b"01");
    trial.put("mine.part", b"01");
    fs::create_dir_all(trial.path(".fetching-killed/deeper")).unwrap();
    trial.get().unwrap();
    assert_eq!(trial.files(), ["images.gz", "labels", "mine.part"]);

    trial.put("labels.part", b"01");
    fs::create_dir_all(trial.path(".fetching-killed/deeper")).unwrap();
    let held = fs::File::open(trial.path(".lock")).unwrap();
    held.lock().unwrap();
    trial.get().unwrap();
    assert_eq!(trial.files(), [".fetching-killed", "images.gz", "labels", "labels.part", "mine.part"]);
    drop(held);
    trial.get().unwrap();
    assert_eq!(trial.files(), ["images.gz", "labels", "mine.part"]);
}

#[test]
fn a_complete_set_is_found_in_a_read_only_folder() {
    let trial = TestDataSet::new(&[urls_nowhere()]);
    trial.put("images", IMAGES);
    trial.put("labels", LABELS);
    trial.get().unwrap();
    assert!(!trial.path(".lock").exists(), "nothing is written where there is nothing to do");
    trial.put("labels.part", b"01");
    let writable = read_only(&trial.path(""));
    assert_eq!(trial.get().unwrap().fetched, [""; 0]);
    fs::set_permissions(trial.path(""), writable).unwrap();
}

/// Removes the write permission, which does not stop root; returns the earlier permissions.
fn read_only(folder: &Path) -> fs::Permissions {
    let before = fs::metadata(folder).unwrap().permissions();
    let mut after = before.clone();
    after.set_readonly(true);
    fs::set_permissions(folder, after).unwrap();
    before
}

#[test]
fn after_a_missing_page_the_next_source_is_tried_for_the_rest() {
    let without_labels = Server::start(|request| match request.path.as_str() {
        "/labels" => not_found(),
        _ => full(&published(request)),
    });
    let good = Server::start(|request| full(&published(request)));
    let trial = TestDataSet::new(&[urls(&without_labels), urls(&good)]);
    let (got, messages) = trial.get_with(WrongFiles::Refuse);
    assert_eq!(got.unwrap().fetched, ["images", "labels"]);
    assert_eq!(good.take_requests(), [request("/labels", None)]);
    let (first, second) = (without_labels.base(), good.base());
    let expected = [
        format!("1 of 2 missing files came from {first}"),
        format!("{first}: labels: the server answered 404 Not Found"),
        format!("1 of 1 missing files came from {second}"),
    ];
    assert_eq!(messages, expected);
}

#[test]
fn wrong_bytes_are_named_by_both_digests_and_leave_no_file() {
    let server = Server::start(|_| full(b"9876543210"));
    let trial = TestDataSet::new(&[urls(&server)]);
    trial.put("images", IMAGES);
    let reason =
        format!("labels: expected sha256 {}, found sha256 {}", sha256(LABELS), sha256(b"9876543210"));
    trial.check_failures(&[(&server.base(), &reason)]);
    assert_eq!(trial.files(), ["images"]);
}

#[test]
fn an_endless_download_is_stopped() {
    let server = Server::start(|_| full(&[1; 1 << 20]));
    let trial = TestDataSet::new(&[urls(&server)]);
    let reason = "images.gz: it sends more than 6029 bytes, so it is another file";
    trial.check_failures(&[(&server.base(), reason)]);
    assert_eq!(trial.files(), [""; 0]);
}

#[test]
fn an_impossible_length_is_an_error() {
    let range = "Content-Range: bytes 4-9/10\r\n";
    let server = Server::start(move |_| response("206 Partial Content", range, usize::MAX, b"456789"));
    let trial = TestDataSet::new(&[urls(&server)]);
    trial.put("images", IMAGES);
    trial.put("labels.part", b"0123");
    trial.check_failures(&[(&server.base(), "labels: broke off after 10 of 18446744073709551615 bytes")]);
}

#[test]
fn a_damaged_gzip_is_an_error() {
    let server = Server::start(|_| full(&gzip(IMAGES)[..20]));
    let trial = TestDataSet::new(&[urls(&server)]);
    let reason =
        format!("images.gz: expected sha256 {}, found data that cannot be decompressed", sha256(IMAGES));
    trial.check_failures(&[(&server.base(), &reason)]);
    assert_eq!(trial.files(), [""; 0]);
}

#[test]
fn without_a_network_every_source_is_named_and_an_unreachable_host_is_tried_once() {
    // A port that was free a moment ago, on which nothing listens.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base: &'static str = format!("http://{address}/").leak();
    let archive = format!("{base}all.tar.gz").leak();
    let all =
        DataSource::Archive { url: archive, format: ArchiveFormat::TarGz, max_bytes: 1000, files: MEMBERS };
    let trial = TestDataSet::new(&[DataSource::Urls { base, files: MEMBERS }, all]);
    let unreachable = format!("images.gz: {address} cannot be reached: ");
    let again = format!("{address} is not tried again, because it failed before: ");
    let error = trial.check_failures(&[(base, &unreachable), (archive, &again)]);
    let remedy = format!(
        "\ntry again with a network, or put these files into {} by hand (compressed or not):\
         \n  images, from {base}images.gz\n  labels, from {base}labels",
        trial.path("").display()
    );
    assert!(error.ends_with(&remedy), "{error}");
    assert_eq!(trial.files(), [""; 0]);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let mut trial = TestDataSet::new(&[urls_nowhere()]);
    let file = trial.folder.path.join("file");
    fs::write(&file, "").unwrap();
    trial.folder.path = file.join("data");
    let error = trial.get().unwrap_err();
    assert!(matches!(error, FetchError::Folder { named_by: "--data", .. }), "{error}");
}

#[test]
fn a_wrong_file_is_never_overwritten_without_force() {
    let server = Server::start(|request| full(&published(request)));
    let trial = TestDataSet::new(&[urls(&server)]);
    trial.put("images", IMAGES);
    trial.put("labels.gz", &gzip(b"mine"));
    let path = trial.path("labels.gz");
    let (expected, found) = (sha256(LABELS), sha256(b"mine"));
    let message = format!(
        "{}: expected sha256 {expected}, found sha256 {found}; move the file away, or replace it with --force",
        path.display()
    );
    assert_eq!(trial.get().unwrap_err().to_string(), message);
    assert_eq!(check(&trial.data_set, &trial.folder.path, &mut NoProgress).unwrap_err().to_string(), message);
    assert_eq!((trial.files(), server.take_requests()), (vec!["images".into(), "labels.gz".into()], vec![]));

    let (got, messages) = trial.get_with(WrongFiles::Replace);
    assert_eq!(got.unwrap().fetched, ["labels"]);
    let about: Vec<_> = messages.iter().filter(|line| line.contains("labels.gz")).collect();
    let line =
        format!("{}: expected sha256 {expected}, found sha256 {found}; it will be replaced", path.display());
    assert_eq!(about, [&line]);
    assert!(!messages.iter().any(|line| line.contains("--force")), "{messages:?}");
    // The file under the other name is removed, because readers would still prefer it.
    assert_eq!(trial.files(), ["images", "labels"]);
    trial.check_whole();
}

#[test]
fn unchecked_files_are_not_called_correct() {
    let mut trial = TestDataSet::new(&[urls_nowhere()]);
    let pin = PinnedDigest::Gzip(sha256(&gzip(LABELS)).leak());
    let labels = DataFile { digest: pin, ..trial.data_set.files[1] };
    trial.data_set.files = vec![trial.data_set.files[0], labels].leak();
    trial.put("images", IMAGES);
    trial.put("labels", b"9876543210");
    let (got, messages) = trial.get_with(WrongFiles::Refuse);
    assert_eq!(got.unwrap().status.length_checked_only, ["labels"]);
    let folder = trial.path("");
    let expected = [
        format!("{}: only the length of labels could be checked", folder.display()),
        format!("made-up is already present: {}", folder.display()),
    ];
    assert_eq!(messages, expected);

    fs::remove_file(trial.path("labels")).unwrap();
    trial.put("labels.gz", &gzip(LABELS));
    let (got, messages) = trial.get_with(WrongFiles::Refuse);
    assert_eq!(got.unwrap().status.length_checked_only, [""; 0]);
    assert_eq!(messages, [format!("made-up is already present and correct: {}", folder.display())]);
}

#[test]
fn a_wrong_file_stays_if_no_source_has_the_right_one() {
    let server = Server::start(|_| not_found());
    let trial = TestDataSet::new(&[urls(&server)]);
    trial.put("labels", b"mine");
    trial.get_with(WrongFiles::Replace).0.unwrap_err();
    assert_eq!(fs::read(trial.path("labels")).unwrap(), b"mine");
}

#[test]
fn an_archive_provides_the_missing_files_and_is_removed() {
    let server = Server::start(|request| ranged(&tgz(), request));
    let trial = TestDataSet::new(&[archive(&server)]);
    // The start of another archive, which shows only when the download is complete.
    trial.put("all.tar.gz.part", &[1; 20]);
    trial.get().unwrap();
    assert_eq!(trial.files(), ["images.gz", "labels"]);
    assert_eq!(
        server.take_requests(),
        [request("/all.tar.gz", Some("bytes=20-")), request("/all.tar.gz", None)]
    );
    trial.check_whole();
}

#[test]
fn a_damaged_archive_is_an_error_and_is_removed() {
    let server = Server::start(|_| full(&tgz()[..40]));
    let trial = TestDataSet::new(&[archive(&server)]);
    trial.check_failures(&[(&format!("{}all.tar.gz", server.base()), "the archive is damaged: ")]);
    assert_eq!(trial.files(), [""; 0]);
}

#[test]
fn a_set_without_sources_names_the_folder_for_its_files() {
    let trial = TestDataSet::new(&[]);
    let message = format!(
        "made-up cannot be fetched: compressed or not; put its files into {}",
        trial.path("").display()
    );
    assert_eq!(trial.get().unwrap_err().to_string(), message);
    trial.put("labels", LABELS);
    trial.put("images", IMAGES);
    assert_eq!(trial.get().unwrap().fetched, [""; 0]);
}
