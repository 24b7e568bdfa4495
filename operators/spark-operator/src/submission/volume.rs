//! The volumes that Spark's properties request, and Spark's own, in Spark's order.
//!
//! Source: Spark on Kubernetes. Options that Spark has since 4.0 work for every `sparkVersion`: the published operator submits
//! with Spark 4, whatever the image runs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath, NFSVolumeSource,
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource,
    SecretVolumeSource, Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use training_core::SpecError;

use super::cx::Cx;
use super::object::{self, PROPERTIES_FILE, TEMPLATE_KEY};
use super::properties::{CONF_DIR, LOCAL_DIR, Properties, TEMPLATE_DIR, TEMPLATE_FILE, below};
use crate::api::Role;
use crate::memory::quantity;
use crate::{label, names};

/// The mount path of Hadoop's configuration.
pub const HADOOP_CONF: &str = "/opt/hadoop/conf";
/// The mount path of delegation tokens.
pub const HADOOP_TOKENS: &str = "/mnt/secrets/hadoop-credentials";
/// The claim name that requests a new claim for the driver.
const ON_DEMAND: &str = "OnDemand";
/// 0644, as Spark sets it.
const FILE_MODE: i32 = 420;

/// A driver's volumes and mounts, and the claims created for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volumes {
    /// Volumes of Secrets and of properties, with their mounts.
    pub asked: Vec<(Volume, VolumeMount)>,
    /// Volumes of Hadoop and Kerberos, with their mounts.
    pub hadoop: Vec<(Volume, VolumeMount)>,
    /// Claims to create.
    pub claims: Vec<PersistentVolumeClaim>,
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        ..VolumeMount::default()
    }
}

fn of_config_map(name: &str, config_map: &str, items: Option<Vec<KeyToPath>>) -> Volume {
    Volume {
        name: name.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config_map.to_owned(),
            items,
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn of_secret(name: &str, secret: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Returns the volumes of the driver that properties request.
///
/// # Errors
/// A volume with a missing option, or of a type that Spark doesn't support.
pub fn of_driver(cx: &Cx<'_>, properties: &Properties) -> Result<Volumes, SpecError> {
    let mut out = Volumes::default();
    for (secret, path) in below(properties, "spark.kubernetes.driver.secrets.") {
        let name = format!("{secret}-volume");
        out.asked
            .push((of_secret(&name, &secret), mount(&name, &path)));
    }
    for (at, asked) in asked(properties, Role::Driver)?.iter().enumerate() {
        let (volume, claim) = asked.volume(cx, at)?;
        out.claims.extend(claim);
        out.asked.push((volume, asked.mount()?));
    }
    out.hadoop = hadoop(properties)?;
    Ok(out)
}

/// Checks the volumes of a role in advance: the driver would only fail when it creates the first executor.
///
/// # Errors
/// A type that Spark doesn't support.
pub fn check(properties: &Properties, role: Role) -> Result<(), SpecError> {
    asked(properties, role).map(drop)
}

/// A volume that properties request.
struct Asked<'a> {
    key: String,
    kind: String,
    name: String,
    properties: &'a Properties,
}

const KINDS: [&str; 4] = ["emptyDir", "hostPath", "nfs", "persistentVolumeClaim"];

fn asked(properties: &Properties, role: Role) -> Result<Vec<Asked<'_>>, SpecError> {
    let prefix = format!("spark.kubernetes.{}.volumes.", role.as_str());
    let mut names = BTreeSet::new();
    for key in below(properties, &prefix).into_keys() {
        let mut parts = key.splitn(3, '.');
        let (kind, name) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        if !KINDS.contains(&kind) || name.is_empty() {
            let why = format!(
                "Spark mounts volumes of the types {}; for any other use spec.volumes with spec.{}.volumeMounts",
                KINDS.join(", "),
                role.as_str()
            );
            return Err(SpecError::new(
                format!("spec.sparkConf[{prefix}{key}]"),
                why,
            ));
        }
        names.insert((kind.to_owned(), name.to_owned()));
    }
    let all = names.into_iter().map(|(kind, name)| Asked {
        key: format!("{prefix}{kind}.{name}"),
        kind,
        name,
        properties,
    });
    Ok(all.collect())
}

impl Asked<'_> {
    fn get(&self, option: &str) -> Option<&String> {
        let value = self.properties.get(&format!("{}.{option}", self.key));
        value.filter(|v| !v.is_empty())
    }

    fn need(&self, option: &str) -> Result<String, SpecError> {
        self.get(option).cloned().ok_or_else(|| {
            let field = format!("spec.sparkConf[{}.{option}]", self.key);
            SpecError::new(field, "is required for this volume; set it")
        })
    }

    fn read_only(&self) -> bool {
        self.get("mount.readOnly")
            .is_some_and(|flag| flag.trim().eq_ignore_ascii_case("true"))
    }

    fn mount(&self) -> Result<VolumeMount, SpecError> {
        let sub_path = self.get("mount.subPath").cloned();
        let expression = self.get("mount.subPathExpr");
        if sub_path.is_some() && expression.is_some() {
            let field = format!("spec.sparkConf[{}.mount.subPathExpr]", self.key);
            return Err(SpecError::new(
                field,
                "can't be set beside mount.subPath; keep one of them",
            ));
        }
        Ok(VolumeMount {
            read_only: self.read_only().then_some(true),
            sub_path,
            sub_path_expr: expression.cloned(),
            ..mount(&self.name, &self.need("mount.path")?)
        })
    }

    fn size(&self) -> Result<Option<Quantity>, SpecError> {
        let Some(text) = self.get("options.sizeLimit") else {
            return Ok(None);
        };
        let field = || format!("spec.sparkConf[{}.options.sizeLimit]", self.key);
        quantity(text).map_err(|why| SpecError::new(field(), why))?;
        Ok(Some(Quantity(text.clone())))
    }

    fn volume(
        &self,
        cx: &Cx<'_>,
        at: usize,
    ) -> Result<(Volume, Option<PersistentVolumeClaim>), SpecError> {
        let mut volume = Volume {
            name: self.name.clone(),
            ..Volume::default()
        };
        let mut made = None;
        match self.kind.as_str() {
            "emptyDir" => {
                volume.empty_dir = Some(EmptyDirVolumeSource {
                    medium: self.get("options.medium").cloned(),
                    size_limit: self.size()?,
                    ..EmptyDirVolumeSource::default()
                });
            }
            "hostPath" => {
                volume.host_path = Some(HostPathVolumeSource {
                    path: self.need("options.path")?,
                    type_: self.get("options.type").cloned(),
                });
            }
            "nfs" => {
                volume.nfs = Some(NFSVolumeSource {
                    path: self.need("options.path")?,
                    server: self.need("options.server")?,
                    read_only: None,
                });
            }
            _ => {
                let asked = self.need("options.claimName")?;
                let of_the_run = format!("{}-driver-pvc-{at}", cx.prefix);
                let claim_name = asked.replace(ON_DEMAND, &of_the_run);
                made = self.claim(cx, &claim_name)?;
                if made.is_none() && asked.contains(ON_DEMAND) {
                    let lacks = ["options.storageClass", "options.sizeLimit"];
                    let lacks = lacks.into_iter().find(|option| self.get(option).is_none());
                    let field = lacks.unwrap_or("options.sizeLimit");
                    return Err(SpecError::new(
                        format!("spec.sparkConf[{}.{field}]", self.key),
                        "is required for a claim that is made on demand; set it",
                    ));
                }
                volume.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
                    claim_name,
                    read_only: self.read_only().then_some(true),
                });
            }
        }
        Ok((volume, made))
    }

    /// Builds the claim for this volume, whatever its name, if the properties set a class and a size.
    fn claim(&self, cx: &Cx<'_>, name: &str) -> Result<Option<PersistentVolumeClaim>, SpecError> {
        let class = self.get("options.storageClass").cloned();
        let (Some(class), Some(size)) = (class, self.size()?) else {
            return Ok(None);
        };
        let legacy = self
            .properties
            .get("spark.kubernetes.legacy.useReadWriteOnceAccessMode");
        let once = legacy.is_some_and(|flag| flag.trim().eq_ignore_ascii_case("true"));
        let mode = if once {
            "ReadWriteOnce"
        } else {
            "ReadWriteOncePod"
        };
        let mut metadata = object::metadata(cx, name.to_owned());
        let run = (label::APP_SELECTOR.to_owned(), cx.app_id.to_owned());
        let mut labels = below(self.properties, &format!("{}.label.", self.key));
        // Our labels identify the claim.
        labels.extend(metadata.labels.take().unwrap_or_default());
        labels.extend([run]);
        metadata.labels = Some(labels);
        let annotations = below(self.properties, &format!("{}.annotation.", self.key));
        metadata.annotations = (!annotations.is_empty()).then_some(annotations);
        Ok(Some(PersistentVolumeClaim {
            metadata,
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec![mode.to_owned()]),
                storage_class_name: Some(class),
                resources: Some(VolumeResourceRequirements {
                    requests: Some([("storage".to_owned(), size)].into()),
                    limits: None,
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: None,
        }))
    }
}

fn hadoop(properties: &Properties) -> Result<Vec<(Volume, VolumeMount)>, SpecError> {
    let mut out = Vec::new();
    if let Some(name) = properties.get("spark.kubernetes.hadoop.configMapName") {
        let volume = of_config_map("hadoop-properties", name, None);
        out.push((volume, mount("hadoop-properties", HADOOP_CONF)));
    }
    if let Some(name) = properties.get("spark.kubernetes.kerberos.krb5.configMapName") {
        let mount = VolumeMount {
            sub_path: Some("krb5.conf".to_owned()),
            ..mount("krb5-file", "/etc/krb5.conf")
        };
        out.push((of_config_map("krb5-file", name, None), mount));
    }
    if let Some((secret, _)) = token_secret(properties)? {
        out.push((
            of_secret("hadoop-secret", &secret),
            mount("hadoop-secret", HADOOP_TOKENS),
        ));
    }
    Ok(out)
}

/// Returns the Secret of delegation tokens, and its key.
///
/// # Errors
/// If only one of the two is set.
pub fn token_secret(properties: &Properties) -> Result<Option<(String, String)>, SpecError> {
    let key = |name: &str| format!("spark.kubernetes.kerberos.tokenSecret.{name}");
    let (name, item) = (
        properties.get(&key("name")),
        properties.get(&key("itemKey")),
    );
    match (name, item) {
        (Some(name), Some(item)) => Ok(Some((name.clone(), item.clone()))),
        (None, None) => Ok(None),
        (name, _) => {
            let missing = key(if name.is_none() { "name" } else { "itemKey" });
            let field = format!("spec.sparkConf[{missing}]");
            Err(SpecError::new(
                field,
                "is required, because the other half of the token secret is set",
            ))
        }
    }
}

/// Returns the volume of the executors' template in the driver.
pub fn template(cx: &Cx<'_>) -> (Volume, VolumeMount) {
    let items = vec![KeyToPath {
        key: TEMPLATE_KEY.to_owned(),
        path: TEMPLATE_FILE.to_owned(),
        ..KeyToPath::default()
    }];
    let volume = of_config_map(
        "pod-template-volume",
        &object::template_name(cx),
        Some(items),
    );
    (volume, mount("pod-template-volume", TEMPLATE_DIR))
}

/// Returns the volume of the properties in the driver.
pub fn conf(name: &str) -> (Volume, VolumeMount) {
    let items = vec![KeyToPath {
        key: PROPERTIES_FILE.to_owned(),
        path: PROPERTIES_FILE.to_owned(),
        mode: Some(FILE_MODE),
        ..KeyToPath::default()
    }];
    let volume = of_config_map("spark-conf-volume-driver", name, Some(items));
    (volume, mount("spark-conf-volume-driver", CONF_DIR))
}

/// A driver's scratch directories.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scratch {
    /// The value of `SPARK_LOCAL_DIRS`.
    pub dirs: String,
    /// Volumes for it, with their mounts.
    pub volumes: Vec<(Volume, VolumeMount)>,
}

/// Returns the scratch directories: the mounted volumes with the prefix, or else a new volume for each configured directory, or
/// else a single one.
pub fn scratch(cx: &Cx<'_>, properties: &Properties, mounts: &[VolumeMount]) -> Scratch {
    let given = mounts.iter().filter(|m| m.name.starts_with(LOCAL_DIR));
    let given: Vec<&str> = given.map(|m| m.mount_path.as_str()).collect();
    if !given.is_empty() {
        return Scratch {
            dirs: given.join(","),
            volumes: Vec::new(),
        };
    }
    let asked = properties.get("spark.local.dir").filter(|d| !d.is_empty());
    let unless = || {
        format!(
            "/var/data/spark-{}",
            names::scratch(cx.inputs.submission_id)
        )
    };
    let dirs = asked.cloned().unwrap_or_else(unless);
    let tmpfs = properties.get("spark.kubernetes.local.dirs.tmpfs");
    let tmpfs = tmpfs.is_some_and(|flag| flag.trim().eq_ignore_ascii_case("true"));
    let volumes = dirs.split(',').enumerate().map(|(at, dir)| {
        let name = format!("{LOCAL_DIR}{}", at + 1);
        let volume = Volume {
            name: name.clone(),
            empty_dir: Some(EmptyDirVolumeSource {
                medium: tmpfs.then(|| "Memory".to_owned()),
                ..EmptyDirVolumeSource::default()
            }),
            ..Volume::default()
        };
        (volume, mount(&name, dir))
    });
    Scratch {
        volumes: volumes.collect(),
        dirs: dirs.clone(),
    }
}
