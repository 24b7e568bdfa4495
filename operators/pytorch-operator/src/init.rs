//! The init container that holds a worker back until its master's name resolves.
//!
//! Its template is YAML with the published variables. The variables are replaced after parsing and only inside strings, so that no
//! value can change the structure.

use k8s_openapi::api::core::v1::Container;
use serde_json::Value;

/// The published default image. It has the shell and `nslookup`, which the built-in template calls.
pub const DEFAULT_IMAGE: &str = "alpine:3.10";
/// The published default number of tries, two seconds apart.
pub const DEFAULT_TRIES: u32 = 100;

/// The variable with a value per job.
const ADDRESS: &str = "{{.MasterAddr}}";

/// The init container of workers.
#[derive(Clone, Debug)]
pub struct InitContainer {
    /// The template, with all variables replaced except the address.
    template: Vec<Value>,
    names: Vec<String>,
}

impl Default for InitContainer {
    fn default() -> Self {
        Self::filled(DEFAULT_IMAGE, DEFAULT_TRIES, built_in())
    }
}

/// An invalid template.
#[derive(Debug, thiserror::Error)]
#[error("the init container template is not a YAML list of containers: {0}")]
pub struct TemplateError(String);

impl InitContainer {
    /// Returns an init container with this image and number of tries, from a template file's text or the built-in template.
    ///
    /// # Errors
    /// If the text is not a YAML list whose items read as containers.
    pub fn new(image: &str, tries: u32, template: Option<&str>) -> Result<Self, TemplateError> {
        let template = match template {
            None => built_in(),
            Some(text) => serde_saphyr::from_str::<Vec<Value>>(text)
                .map_err(|e| TemplateError(e.to_string()))?,
        };
        let it = Self::filled(image, tries, template);
        for item in &it.template {
            fill(item, "master").map_err(|e| TemplateError(e.to_string()))?;
        }
        Ok(it)
    }

    fn filled(image: &str, tries: u32, mut template: Vec<Value>) -> Self {
        let tries = tries.to_string();
        for item in &mut template {
            substitute(item, &|text| {
                text.replace("{{.InitContainerImage}}", image)
                    .replace("{{.MaxTries}}", &tries)
            });
        }
        let mut it = Self {
            template,
            names: Vec::new(),
        };
        it.names = it.render("").into_iter().map(|c| c.name).collect();
        it
    }

    /// Returns the containers for a job whose master has this address.
    pub fn render(&self, master: &str) -> Vec<Container> {
        // Every item was decoded as a container when the template was accepted, and replacing variables only changes strings.
        self.template
            .iter()
            .filter_map(|item| fill(item, master).ok())
            .collect()
    }

    /// The names of the containers.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

fn fill(item: &Value, master: &str) -> Result<Container, serde_json::Error> {
    let mut item = item.clone();
    substitute(&mut item, &|text| text.replace(ADDRESS, master));
    serde_json::from_value(item)
}

fn substitute(value: &mut Value, with: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) if text.contains("{{") => *text = with(text),
        Value::Array(items) => items.iter_mut().for_each(|item| substitute(item, with)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| substitute(field, with)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The template for images with a shell. It passes the restricted Pod Security level.
fn built_in() -> Vec<Value> {
    vec![serde_json::json!({
        "name": crate::api::INIT_CONTAINER,
        "image": "{{.InitContainerImage}}",
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"}
        },
        // Address and tries are arguments, so that no value from a job becomes part of the shell script.
        "command": [
            "sh", "-c",
            "tries=0; until nslookup \"$0\"; do tries=$((tries + 1)); [ \"$tries\" -lt \"$1\" ] || exit 1; echo waiting for master; sleep 2; done",
            "{{.MasterAddr}}", "{{.MaxTries}}"
        ],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"}
        }
    })]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_template_waits_for_the_master() {
        let containers = InitContainer::default().render("pt-master-0");
        assert_eq!(containers.len(), 1);
        let command = containers[0].command.clone().unwrap();
        assert_eq!(command[3..], ["pt-master-0", "100"]);
        assert_eq!(containers[0].image.as_deref(), Some("alpine:3.10"));
        assert!(
            !command[2].contains("{{"),
            "no variable inside the shell's text"
        );
    }

    #[test]
    fn mt_21_a_template_file_is_filled_in_inside_strings_only() {
        let text = "- name: w\n  image: '{{.InitContainerImage}}'\n  command: [wait, '--tries={{.MaxTries}}', '{{.MasterAddr}}']\n";
        let it = InitContainer::new("img: [x]\n- evil", 7, Some(text)).unwrap();
        let containers = it.render("a-master-0");
        assert_eq!(containers[0].image.as_deref(), Some("img: [x]\n- evil"));
        assert_eq!(
            containers[0].command.as_deref().unwrap(),
            ["wait", "--tries=7", "a-master-0"]
        );
    }

    #[test]
    fn mt_21_a_template_that_is_no_list_of_containers_is_refused() {
        for text in [
            "name: x",
            "- 1",
            "- {image: 3}",
            "{{.MasterAddr}}",
            "- name: [x]",
        ] {
            assert!(InitContainer::new("", 1, Some(text)).is_err(), "{text}");
        }
    }
}
