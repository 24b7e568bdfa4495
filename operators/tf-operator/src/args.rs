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
        value_parser = training_runtime::cli::parse_domain,
        help_heading = "TensorFlow"
    )]
    pub cluster_domain: Option<String>,
}
