//! Spark properties, and helpers to read them.

use std::collections::BTreeMap;

use training_core::SpecError;

use super::cx::Cx;

/// Properties by key.
pub type Properties = BTreeMap<String, String>;

/// The directory of the properties in the driver. It doesn't follow `SPARK_HOME`. Source: Spark.
pub const CONF_DIR: &str = "/opt/spark/conf";
/// The directory of the executors' template in the driver. Source: Spark.
pub const TEMPLATE_DIR: &str = "/opt/spark/pod-template";
/// The file of that template. Source: Spark.
pub const TEMPLATE_FILE: &str = "pod-spec-template.yml";
/// The property with the submission time. Units: milliseconds since 1970.
pub const SUBMIT_TIME: &str = "spark.app.submitTime";
/// The property that names the driver's pod.
pub const POD_NAME: &str = "spark.kubernetes.driver.pod.name";
/// The name prefix of volumes for Spark's scratch data.
pub const LOCAL_DIR: &str = "spark-local-dir-";
/// The main file of an application without one.
pub const INTERNAL: &str = "spark-internal";

/// Returns the elements of a list property.
pub fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// The ports of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Executors connect to it.
    pub rpc: i32,
    /// Serves blocks.
    pub block_manager: i32,
    /// The same port of the Service. Spark ignores `spark.blockManager.port` here, so the two can differ.
    pub block_manager_of_service: i32,
    /// The web UI. Declared even if the UI is off.
    pub ui: i32,
    /// Spark Connect, since 4.1.
    pub connect: Option<i32>,
}

impl Ports {
    /// Returns the ports that the properties request.
    ///
    /// # Errors
    /// If one is not a valid port.
    pub fn of(cx: &Cx<'_>, properties: &Properties) -> Result<Self, SpecError> {
        let port = |key: &str| match properties.get(key) {
            None => Ok(None),
            Some(text) => {
                let number = text
                    .trim()
                    .parse()
                    .ok()
                    .filter(|n| (1..=65_535).contains(n));
                let why = || format!("\"{text}\" is no port; write a number from 1 to 65535");
                number
                    .map(Some)
                    .ok_or_else(|| SpecError::new(format!("spec.sparkConf[{key}]"), why()))
            }
        };
        let own = port("spark.driver.blockManager.port")?;
        let service = own.unwrap_or(7079);
        let connect = if cx.version.at_least(4, 1) {
            Some(port("spark.connect.grpc.binding.port")?.unwrap_or(15_002))
        } else {
            None
        };
        Ok(Self {
            rpc: port("spark.driver.port")?.unwrap_or(7078),
            block_manager: match own {
                Some(own) => own,
                None => port("spark.blockManager.port")?.unwrap_or(7079),
            },
            block_manager_of_service: service,
            ui: port("spark.ui.port")?.unwrap_or(4040),
            connect,
        })
    }
}

/// Returns the properties with a prefix, without the prefix.
pub fn below<'a>(properties: &'a Properties, prefix: &'a str) -> BTreeMap<String, String> {
    properties
        .range(prefix.to_owned()..)
        .take_while(|(key, _)| key.starts_with(prefix))
        .map(|(key, value)| (key[prefix.len()..].to_owned(), value.clone()))
        .collect()
}
