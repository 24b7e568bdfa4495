//! The binary's own arguments. They are here, and not in the binary, so that documents are generated from them.

/// What `tf-operator` understands beside the arguments of every operator.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TfArgs {
    /// Domain of the cluster, such as cluster.local, which ends the addresses in `TF_CONFIG`. Empty: they end in .svc
    // The variable is the published one.
    #[arg(
        long,
        env = "CUSTOM_CLUSTER_DOMAIN",
        value_name = "DOMAIN",
        value_parser = domain,
        help_heading = "TensorFlow"
    )]
    pub cluster_domain: Option<String>,
}

fn domain(text: &str) -> Result<String, String> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let label = |l: &str| !l.is_empty() && l.bytes().all(plain);
    if text.is_empty() || text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err("a domain has labels of lower-case letters, digits and dashes, with one dot between them".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::domain;

    #[test]
    fn a_domain_that_no_address_can_end_in_is_refused() {
        for good in ["", "cluster.local", "a-1.b"] {
            assert!(domain(good).is_ok(), "{good}");
        }
        for bad in [".", ".svc", "a..b", "A.b", "a b", "a.b."] {
            assert!(domain(bad).is_err(), "{bad}");
        }
    }
}
