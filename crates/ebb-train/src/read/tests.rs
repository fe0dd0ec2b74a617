//! The files that are searched for, and the published data sets with their known digests.

use std::env;
use std::fs;
use std::io::Write;

use ebb_settings::{BuildContext, Tree};
use sha2::{Digest, Sha256};

use super::*;

/// The data folder if it holds this set. Else the test is skipped, but never in CI.
pub(crate) fn real(set: &str) -> Option<PathBuf> {
    if env::var_os(DATA_VARIABLE).is_some() {
        // A folder that is named but does not exist is a mistake on any machine.
        let folder = data_folder(None).unwrap();
        if folder.join(set).is_dir() {
            return Some(folder);
        }
    }
    let missing = format!("no folder {set} in {DATA_VARIABLE}");
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{missing}, which CI must have");
    // `eprintln` would show only when a test fails.
    let _ = writeln!(io::stderr(), "skipped: the test on real {set} data ({missing})");
    None
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn class_counts(images: &Images) -> Vec<usize> {
    let mut counts = vec![0; images.n_classes];
    for &label in &images.labels {
        counts[usize::from(label)] += 1;
    }
    counts
}

/// Checks class counts and digests of the bytes after the headers.
fn check_grey_images(images: &Images, counts: [usize; 10], pixels: &str, labels: &str) {
    let n_images: usize = counts.iter().sum();
    assert_eq!(format!("{images:?}"), format!("{n_images} images of 28 x 28 x 1 in 10 classes"));
    assert_eq!(class_counts(images), counts);
    assert_eq!(digest(&images.pixels), pixels);
    assert_eq!(digest(&images.labels), labels);
}

/// The digest of an official binary batch, rebuilt from a batch of images.
fn batch_digest(images: &Images, batch_idx: usize) -> String {
    let mut file = Vec::with_capacity(10_000 * 3073);
    for sample_idx in batch_idx * 10_000..(batch_idx + 1) * 10_000 {
        file.push(images.labels[sample_idx]);
        for channel in 0..3 {
            file.extend(images.sample(sample_idx).chunks_exact(3).map(|pixel| pixel[channel]));
        }
    }
    digest(&file)
}

#[test]
fn a_file_is_within_the_data_folder_or_has_a_path() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("a.csv"), "").unwrap();
    let find = |data: &str, file: &str| {
        let mut tree = Tree::parse(&format!("[data]\nfile = '{file}'"), "a.toml").unwrap();
        tree.set_data_folder(Some(Path::new(data)));
        let found = find_file(&tree.table("data", BuildContext::default()), "file", file);
        found.map(|path| path.display().to_string()).map_err(|error| error.to_string())
    };
    let wrong = |file: &str, message: &str| Err(format!("a.toml:2:1: data.file = \"{file}\": {message}"));
    let data = at("");
    assert_eq!(find(&data, "a.csv"), Ok(at("a.csv")));
    assert_eq!(find("gone", &at("a.csv")), Ok(at("a.csv")));
    let message = format!("there is no such file in {data}; correct it, or give an absolute path");
    assert_eq!(find(&data, "b.csv"), wrong("b.csv", &message));
    assert_eq!(find(&data, &at("b.csv")), wrong(&at("b.csv"), "there is no such file; correct it"));
    let message =
        "gone: no such folder, though --data names it; correct or create it. Or give an absolute path";
    assert_eq!(find("gone", "a.csv"), wrong("a.csv", message));
}

#[test]
fn real_mnist() {
    let Some(data) = real("mnist") else { return };
    check_grey_images(
        &mnist(&data, Part::Train).unwrap(),
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    );
    check_grey_images(
        &mnist(&data, Part::Test).unwrap(),
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    );
}

#[test]
fn real_fashion_mnist() {
    let Some(data) = real("fashion-mnist") else { return };
    check_grey_images(
        &fashion_mnist(&data, Part::Train).unwrap(),
        [6000; 10],
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    );
    check_grey_images(
        &fashion_mnist(&data, Part::Test).unwrap(),
        [1000; 10],
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    );
}

#[test]
fn real_cifar10() {
    let Some(data) = real("cifar10") else { return };
    let test = cifar10(&data, Part::Test).unwrap();
    assert_eq!(format!("{test:?}"), "10000 images of 32 x 32 x 3 in 10 classes");
    assert_eq!(class_counts(&test), [1000; 10]);
    assert_eq!(batch_digest(&test, 0), "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b");

    let train = cifar10(&data, Part::Train).unwrap();
    assert_eq!(format!("{train:?}"), "50000 images of 32 x 32 x 3 in 10 classes");
    assert_eq!(class_counts(&train), [5000; 10]);
    let published = [
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    ];
    for (batch_idx, published) in published.into_iter().enumerate() {
        assert_eq!(batch_digest(&train, batch_idx), published, "batch {batch_idx}");
    }
}

/// The digest of a file as it is stored.
fn file_digest(data: &Path, file: &str) -> String {
    digest(&fs::read(data.join(file)).unwrap())
}

#[test]
fn real_emnist_letters_10k() {
    let Some(data) = real("emnist") else { return };
    let published = "627f3597150a92efef0017ba075cfb219e0696075c7b939cbb69577209de16ee";
    let name = "emnist/emnist-letters-train-first10000-images-idx3-ubyte.gz";
    assert_eq!(file_digest(&data, name), published);
    let published = "9759af91ea6bccdf07a6040fd085861f2ec88e37f7c3f5760f6feb57106fbe5c";
    assert_eq!(file_digest(&data, "emnist/emnist-letters-train-labels-idx1-ubyte.gz"), published);

    let train = emnist_letters_10k(&data, Part::Train).unwrap();
    let test = emnist_letters_10k(&data, Part::Test).unwrap();
    assert_eq!(format!("{train:?}"), "9000 images of 28 x 28 x 1 in 26 classes");
    assert_eq!(format!("{test:?}"), "1000 images of 28 x 28 x 1 in 26 classes");
    let counts: Vec<_> =
        class_counts(&train).iter().zip(class_counts(&test)).map(|(train, test)| train + test).collect();
    let published = [
        390, 349, 402, 374, 369, 362, 385, 391, 395, 408, 383, 388, 399, 371, 376, 401, 373, 356, 407, 372,
        407, 406, 396, 374, 390, 376,
    ];
    assert_eq!(counts, published);

    // An upright U is closed below, and a T has its bar above; swapped, they would differ from side to side.
    let inked = |class: u8, places: fn(usize, usize) -> bool| -> f64 {
        let mut ink = 0.0;
        for idx in (0..train.n_samples()).filter(|&idx| train.labels[idx] == class) {
            for (at, &pixel) in train.sample(idx).iter().enumerate() {
                ink += if places(at / 28, at % 28) { f64::from(pixel) } else { 0.0 };
            }
        }
        ink
    };
    let upper = |class| inked(class, |y, _| y < 14);
    let lower = |class| inked(class, |y, _| y >= 14);
    let (t, u) = (b'T' - b'A', b'U' - b'A');
    assert!(upper(t) > 1.4 * lower(t) && lower(u) > 1.3 * upper(u));
}

#[test]
fn real_shakespeare() {
    let Some(data) = real("shakespeare") else { return };
    let published = "f108d3a03d0fcce85535a76a7ad9d840aa7c40f33045b9bd83932cf041cc71cf";
    assert_eq!(file_digest(&data, "shakespeare/leaf-roles.jsonl.gz"), published);
    let roles = shakespeare(&data).unwrap();
    assert_eq!(format!("{roles:?}"), "4226158 sequences of 1129 roles");
    assert!(roles.roles.is_sorted_by(|one, next| one.name < next.name));
    assert_eq!(roles.text.len(), 4_226_158 + 1129 * Roles::STEPS, "the text is held once");
    let used: std::collections::BTreeSet<_> = roles.text.iter().collect();
    assert_eq!((used.len(), used.first()), (79, Some(&&1)), "all but the end of a line");
}

#[test]
fn a_folder_that_is_not_there_is_named_with_the_remedy() {
    let here = tempfile::tempdir().unwrap();
    let check = |path: &Path, named_by, expected: Result<&Path, &str>| {
        let found = existing_folder(Some(DataFolder { path: path.to_owned(), named_by }));
        let found = found.as_deref().map_err(ToString::to_string);
        assert_eq!(found, expected.map_err(str::to_owned));
    };
    check(here.path(), "--data", Ok(here.path()));
    let absent = Path::new("not/there");
    check(absent, "--data", Err("not/there: no such folder, though --data names it; correct or create it"));
    let message = "no data was put into not/there yet; see: ebbflow data list. Or name a folder with --data or \
                   EBBFLOW_DATA";
    check(absent, DataFolder::CACHE, Err(message));
    let error = existing_folder(None).unwrap_err().to_string();
    assert_eq!(error, "no data folder; name one with --data or in the variable EBBFLOW_DATA");
}

#[test]
fn mnist_may_be_compressed_or_not_and_is_28_x_28() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("mnist");
    let error_text = || {
        let error = mnist(data.path(), Part::Test).unwrap_err().to_string();
        error.replace(folder.to_str().unwrap(), "at")
    };
    fs::create_dir(&folder).unwrap();
    let missing = "at: expected t10k-images-idx3-ubyte.gz or t10k-images-idx3-ubyte, found neither; \
                   see: ebbflow data list, or put the published file there";
    assert_eq!(error_text(), missing);

    let images = |side: u8| {
        [&[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, side, 0, 0, 0, side][..], &vec![5; usize::from(side).pow(2)]]
            .concat()
    };
    fs::write(folder.join("t10k-images-idx3-ubyte"), images(28)).unwrap();
    assert_eq!(error_text(), missing.replace("images-idx3", "labels-idx1"));

    fs::write(folder.join("t10k-labels-idx1-ubyte"), [0, 0, 8, 1, 0, 0, 0, 1, 9]).unwrap();
    let read = mnist(data.path(), Part::Test).unwrap();
    assert_eq!((read.labels, read.pixels), (vec![9], vec![5; 784]));

    // The published name comes first; the content, not the name, decides whether a file is compressed.
    fs::write(folder.join("t10k-images-idx3-ubyte.gz"), images(27)).unwrap();
    let message = "expected images of 28 x 28, found 27 x 27; fetch the file again";
    assert_eq!(error_text(), format!("at/t10k-images-idx3-ubyte.gz: {message}"));
}

#[test]
fn cifar_batches_are_looked_for_in_two_folders_and_two_forms() {
    let data = tempfile::tempdir().unwrap();
    let error_text = |part| {
        let error = cifar10(data.path(), part).unwrap_err().to_string();
        error.replace(data.path().to_str().unwrap(), "at")
    };
    let missing = "at/cifar10: expected test_batch.bin or test_batch.webp, found neither; \
                   see: ebbflow data list, or put the published file there";
    assert_eq!(error_text(Part::Test), missing);

    let unpacked = data.path().join("cifar-10-batches-bin");
    fs::create_dir(&unpacked).unwrap();
    fs::write(unpacked.join("test_batch.bin"), vec![7; 10_000 * 3073]).unwrap();
    let read = cifar10(data.path(), Part::Test).unwrap();
    assert_eq!((class_counts(&read)[7], read.pixels.len()), (10_000, 10_000 * 3072));

    fs::rename(unpacked.join("test_batch.bin"), unpacked.join("data_batch_1.bin")).unwrap();
    let error = error_text(Part::Train);
    assert!(error.starts_with("at/cifar-10-batches-bin/data_batch_2.bin: cannot be read: "), "{error}");

    fs::create_dir(data.path().join("cifar10")).unwrap();
    fs::write(data.path().join("cifar10/test_batch.webp"), "").unwrap();
    assert!(error_text(Part::Test).starts_with("at/cifar10: expected test-labels-idx1-ubyte.gz or "));

    // One of the folders is complete, so incomplete ones are ignored.
    for batch in
        ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    {
        fs::write(unpacked.join(format!("{batch}.bin")), vec![5; 10_000 * 3073]).unwrap();
    }
    fs::write(data.path().join("cifar10/data_batch_1.bin"), vec![7; 10_000 * 3073]).unwrap();
    let [train, test] = [Part::Train, Part::Test].map(|part| cifar10(data.path(), part).unwrap());
    assert_eq!((class_counts(&train)[5], class_counts(&test)[5]), (50_000, 10_000));
}
