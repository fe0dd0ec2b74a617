//! Measured upload speeds: a mean and a standard deviation per FLASH device, or measurements per MobiPerf
//! phone.

use std::collections::BTreeMap;
use std::path::Path;

use ebb_round::{ClientId, RoundNo, Stream};
use ebb_settings::{Entry, Positive, Settings, SettingsError};
use ebb_train::read::{Column, ColumnRole, RowLocation, Table as Rows, TableForm, find_file, table};
use serde::{Deserialize, Serialize};

use super::{Link, transfer_s};
use crate::table_error::table_error;
use crate::world::MAX_TIME_S;

/// The entry of this kind in the registry.
pub const FLASH: Entry<dyn Link> = Entry {
    name: "flash",
    about: "speeds of 19 FLASH devices: each client has a device, each round draws around its mean upload speed",
    example: "file = \"traces/flash-network-speed.csv\"   # columns device, up_mean, up_sd
kbit_s = 1.0               # kbit/s per unit of the file; its source gives \"kb/s\"",
    build: |settings| {
        Ok(Box::new(MeasuredLink::build(settings, "traces/flash-network-speed.csv", read_flash)?))
    },
};

/// The entry of this kind in the registry.
pub const MOBIPERF: Entry<dyn Link> = Entry {
    name: "mobiperf",
    about: "speeds of 91 MobiPerf phones: each client has a phone, each round uses one of its measurements",
    example:
        "file = \"traces/mobiperf-tcp-down.csv\"   # columns device, tcp_down: download speeds, used as upload speeds
kbit_s = 1.0               # kbit/s per unit of the file; MobiPerf reports kbit/s",
    build: |settings| {
        Ok(Box::new(MeasuredLink::build(settings, "traces/mobiperf-tcp-down.csv", read_mobiperf)?))
    },
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    file: Option<String>,
    kbit_s: Option<Positive>,
}

/// The measured speeds of a device.
#[derive(Clone, Debug, PartialEq)]
enum Device {
    /// A normal distribution, cut at a tenth of its mean.
    Normal { mean: f64, std: f64 },
    /// The measurements; each round draws one of them.
    Measurements(Vec<f64>),
}

#[derive(Debug)]
struct MeasuredLink {
    seed: u64,
    bits_per_s: f64,
    devices: Vec<Device>,
}

/// Reads a file in which one unit of speed is this many bits per second.
type DeviceReader = fn(&Path, f64) -> Result<Vec<Device>, String>;

impl MeasuredLink {
    fn build(
        settings: &Settings<'_>,
        default_file: &str,
        read: DeviceReader,
    ) -> Result<MeasuredLink, SettingsError> {
        let table: Table = settings.parse()?;
        settings.resolve("file", table.file.as_deref().unwrap_or(default_file));
        settings.resolve("kbit_s", table.kbit_s.map_or(1.0, Positive::get));
        let file = find_file(settings, "file", table.file.as_deref().unwrap_or(default_file))?;
        let bits_per_s = 1e3 * table.kbit_s.map_or(1.0, Positive::get);
        let devices = read(&file, bits_per_s).map_err(|message| settings.error("file", message))?;
        Ok(MeasuredLink { seed: settings.context().seed, bits_per_s, devices })
    }
}

impl Link for MeasuredLink {
    fn upload_s(&self, number: RoundNo, client: ClientId, n_bytes: u64) -> f64 {
        let device_idx = Stream::of_client(self.seed, "device", client).below(self.devices.len());
        let mut stream = Stream::of_client_round(self.seed, "link", number, client);
        let speed = match &self.devices[device_idx] {
            Device::Normal { mean, std } => (mean + std * stream.normal()).max(mean / 10.0),
            Device::Measurements(speeds) => speeds[stream.below(speeds.len())],
        };
        transfer_s(n_bytes, speed * self.bits_per_s)
    }
}

/// The numbers of a column that must exist.
fn number_column<'t>(rows: &'t Rows, file: &Path, name: &str) -> Result<&'t [f64], String> {
    match column(rows, name) {
        Some(Column::Numbers(numbers)) => Ok(numbers),
        _ => Err(missing_column(file, name)),
    }
}

/// The names of a column that must exist, row by row.
fn name_column<'t>(rows: &'t Rows, file: &Path, name: &str) -> Result<Vec<&'t str>, String> {
    match column(rows, name) {
        Some(Column::Categories { codes: places, names }) => {
            Ok(places.iter().map(|&place| names[place as usize].trim()).collect())
        }
        _ => Err(missing_column(file, name)),
    }
}

fn column<'t>(rows: &'t Rows, name: &str) -> Option<&'t Column> {
    rows.columns.iter().find(|(own, _)| own == name).map(|(_, column)| column)
}

fn missing_column(file: &Path, name: &str) -> String {
    format!("{}: expected a column {name}, found none; add it", file.display())
}

/// Reads these columns; `device` holds names, all others hold numbers.
fn read_columns(file: &Path, columns: &[&str]) -> Result<Rows, String> {
    let meant = |name: &str| {
        let meant = if name == "device" { ColumnRole::Class } else { ColumnRole::Number };
        columns.contains(&name).then_some(meant)
    };
    table(file, TableForm::default(), meant).map_err(|error| table_error(file, error, columns))
}

/// Checks all numbers of a column; `expected` describes a valid one.
fn check_column(
    file: &Path,
    numbers: &[f64],
    is_valid: fn(f64) -> bool,
    expected: &str,
) -> Result<(), String> {
    match numbers.iter().enumerate().find(|(_, number)| !is_valid(**number)) {
        None => Ok(()),
        Some((row, found)) => {
            let (place, file) = (RowLocation::of(file, TableForm::default(), row), file.display());
            Err(format!("{file}: expected {expected} in {place}, found {found}; correct it"))
        }
    }
}

/// Checks that all speeds are positive, and large enough that virtual time keeps its precision.
fn check_speeds(file: &Path, speeds: &[f64], bits_per_s: f64) -> Result<(), String> {
    check_column(file, speeds, |speed| speed > 0.0, "a speed above 0")?;
    let Some(row) = speeds.iter().position(|speed| transfer_s(1, speed * bits_per_s) > MAX_TIME_S) else {
        return Ok(());
    };
    let (place, file) = (RowLocation::of(file, TableForm::default(), row), file.display());
    let expected = format!("a speed that sends a byte within {MAX_TIME_S} seconds");
    let found = format!("{:e}", speeds[row]);
    Err(format!("{file}: expected {expected} in {place}, found {found}; correct it, or give a larger kbit_s"))
}

fn read_flash(file: &Path, bits_per_s: f64) -> Result<Vec<Device>, String> {
    let rows = read_columns(file, &["up_mean", "up_sd"])?;
    let (means, stds) = (number_column(&rows, file, "up_mean")?, number_column(&rows, file, "up_sd")?);
    check_speeds(file, means, bits_per_s)?;
    check_column(file, stds, |std| std >= 0.0, "a standard deviation of at least 0")?;
    let device = |(&mean, &std): (&f64, &f64)| Device::Normal { mean, std };
    Ok(means.iter().zip(stds).map(device).collect())
}

fn read_mobiperf(file: &Path, bits_per_s: f64) -> Result<Vec<Device>, String> {
    let rows = read_columns(file, &["device", "tcp_down"])?;
    let (devices, speeds) = (name_column(&rows, file, "device")?, number_column(&rows, file, "tcp_down")?);
    check_speeds(file, speeds, bits_per_s)?;
    let mut by_device: BTreeMap<(u64, &str), Vec<f64>> = BTreeMap::new();
    for (device, speed) in devices.into_iter().zip(speeds) {
        by_device.entry(device_order(device)).or_default().push(*speed);
    }
    Ok(by_device.into_values().map(Device::Measurements).collect())
}

/// The order of devices: numbers ascending, then names ascending.
fn device_order(device: &str) -> (u64, &str) {
    let number = device.parse().ok().filter(|number: &f64| number.is_finite());
    number.map_or((u64::MAX, device), |number| (number.to_bits(), ""))
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree, find};

    use super::super::ALL;
    use super::*;
    use crate::membership_file::tests::parquet;

    fn build(text: &str) -> Result<Box<dyn Link>, String> {
        let tree = Tree::parse(&format!("[world.link]\n{text}"), "a.toml").unwrap();
        let settings = tree.table("world.link", BuildContext { seed: 3, n_clients: 100, n_rounds: 1 });
        let entry = find(ALL, &settings, None).map_err(|error| error.to_string())?;
        (entry.build)(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn speeds_are_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        let built = |kind: &str, content: &[u8]| {
            std::fs::write(&file, content).unwrap();
            build(&format!("kind = \"{kind}\"\nfile = \"{}\"", file.display()))
        };
        // 1,000 bytes are 8 kbit.
        let link = built("flash", b"device,up_mean,up_sd\n0,4,0\n1,8,0\n").unwrap();
        let mut seen: Vec<f64> =
            (0..50).map(|client| link.upload_s(0, ClientId::new(client), 1000)).collect();
        seen.sort_by(f64::total_cmp);
        seen.dedup();
        assert_eq!(seen, [1.0, 2.0]);
        let link = built("mobiperf", b"device,network_type,tcp_down\n0,WIFI,4\n0,WIFI,2\n").unwrap();
        let mut seen: Vec<f64> =
            (0..50).map(|number| link.upload_s(number, ClientId::new(7), 1000)).collect();
        seen.sort_by(f64::total_cmp);
        seen.dedup();
        assert_eq!(seen, [2.0, 4.0]);
        let check = |kind: &str, text: &str, expected: &str| {
            let Err(error) = built(kind, text.as_bytes()) else { panic!("it was accepted") };
            assert!(error.ends_with(&format!("/a.csv: expected {expected}")), "{error}");
        };
        let (means, speeds) = ("device,up_mean,up_sd\r\n\r\n", "device,tcp_down\n\n");
        check("flash", &format!("{means}0,0,0\n"), "a speed above 0 in line 3, found 0; correct it");
        check(
            "flash",
            &format!("{means}0,1,0\r\n\r\n0,1,-1\n"),
            "a standard deviation of at least 0 in line 5, found -1; correct it",
        );
        check("mobiperf", &format!("{speeds}0,1\n0,-2"), "a speed above 0 in line 4, found -2; correct it");
        check("flash", "device,mean\n0,1\n", "a column up_mean, found none; add it");
        let content = parquet(&[("device", &[0, 0]), ("tcp_down", &[1, 0])]);
        let Err(error) = built("mobiperf", &content) else { panic!("it was accepted") };
        assert!(error.ends_with("/a.csv: expected a speed above 0 in row 2, found 0; correct it"), "{error}");
    }

    #[test]
    fn speeds_vary_as_their_distribution_says() {
        let link = build("kind = \"log-normal\"\nmbit_s = 8.0\nspread = 1.0\njitter = 0.5").unwrap();
        // The median time for a million bytes is one second; its logarithm has variance 1.25.
        let logs: Vec<f64> =
            (0..20_000).map(|client| libm::log(link.upload_s(1, ClientId::new(client), 1_000_000))).collect();
        let mean = logs.iter().sum::<f64>() / 20_000.0;
        let variance = logs.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.035 && (variance - 1.25).abs() < 0.06, "{mean} {variance}");
    }

    #[test]
    fn remedies_name_the_columns_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        let check = |kind: &str, text: &str, expected: &str| {
            std::fs::write(&file, text).unwrap();
            let Err(error) = build(&format!("kind = \"{kind}\"\nfile = \"{}\"", file.display())) else {
                panic!("it was accepted")
            };
            assert!(error.ends_with(&format!("/a.csv: expected {expected}")), "{error}");
        };
        let empty = "at least one row below the columns' names, found none; give a table with the columns";
        check("flash", "", &format!("{empty} up_mean, up_sd"));
        check("mobiperf", "device,tcp_down\n", &format!("{empty} device, tcp_down"));
        check(
            "flash",
            "up_mean,up_sd\n1,x\n",
            "a number in line 2, column \"up_sd\", found \"x\"; correct the file",
        );
    }

    #[test]
    fn phones_may_have_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        let devices = |text: &str| {
            std::fs::write(&file, format!("device,carrier,tcp_down\n{text}")).unwrap();
            read_mobiperf(&file, 1e3).unwrap()
        };
        let measured = |speeds: &[f64]| Device::Measurements(speeds.to_vec());
        assert_eq!(
            devices("b,x,1\na 7,x,2\nb,y,3\nnan,z,4\n"),
            [measured(&[2.0]), measured(&[1.0, 3.0]), measured(&[4.0])]
        );
        // Numbers sort by their values, however they are written.
        assert_eq!(
            devices("10,x,1\n9,x,2\n9.0,x,3\na,x,4\n"),
            [measured(&[2.0, 3.0]), measured(&[1.0]), measured(&[4.0])]
        );
    }

    #[test]
    fn no_link_is_endlessly_slow() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.csv");
        let check = |text: &str, content: &str, expected: &str| {
            std::fs::write(&file, content).unwrap();
            let text = text.replace("FILE", file.to_str().unwrap());
            let Err(error) = build(&text) else { panic!("it was accepted: {text}") };
            assert!(error.ends_with(expected), "{error}");
        };
        check(
            "kind = \"log-normal\"\nmbit_s = 1e-320",
            "",
            "at 1e-320 Mbit/s a byte takes more than 1000000000 seconds; give a higher speed",
        );
        let slow = "found 1e-13; correct it, or give a larger kbit_s";
        let fast = "expected a speed that sends a byte within 1000000000 seconds in line";
        check(
            "kind = \"flash\"\nfile = \"FILE\"",
            "up_mean,up_sd\n1,0\n1e-13,0\n",
            &format!("/a.csv: {fast} 3, {slow}"),
        );
        check(
            "kind = \"mobiperf\"\nfile = \"FILE\"\nkbit_s = 0.01",
            "device,tcp_down\n0,1e-13\n",
            &format!("/a.csv: {fast} 2, {slow}"),
        );
        assert!(build("kind = \"log-normal\"\nmbit_s = 1e-14").is_ok());
    }
}
