# The front door. Every target is one line; what they do is in crates/xtask.
XTASK := cargo run -q -p xtask --

.DEFAULT_GOAL := help
.PHONY: help demo demo-tf demo-xgboost demo-jax demo-mpi demo-spark demo-down test check test-unit test-api test-pods test-deep bench cluster cluster-down kubectl kueue manifests docs pictures charts release spark-recordings peers peer-recordings image-% run-% clean clean-cache

help: ## Show this list
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 24
demo: ## Train a PyTorchJob on a local cluster, from nothing
	@$(XTASK) demo
demo-tf: ## Train a TFJob there
	@$(XTASK) demo tf
demo-xgboost: ## Train an XGBoostJob there
	@$(XTASK) demo xgboost
demo-jax: ## Train a JAXJob there
	@$(XTASK) demo jax
demo-mpi: ## Solve an equation with an MPIJob there
	@$(XTASK) demo mpi
demo-spark: ## Run a SparkApplication there
	@$(XTASK) demo spark
demo-down: ## Remove the demo's cluster
	@$(XTASK) cluster-down demo
test: ## Run every check and test, from nothing
	@$(XTASK) test
check: ## Format, lints, docs, dependencies, generated files
	@$(XTASK) test format deps built lint libs-alone docs manifests
test-unit: ## Unit, table and property tests
	@$(XTASK) test built unit
test-api: ## Tests against a real API server
	@$(XTASK) test node collector built api faults
test-pods: ## Tests with real pods on a local cluster
	@$(XTASK) test packages node images content kueue sdk built pods
test-deep: ## Repeat much more often what test does once (DEEP=1/3 for a third of it)
	@$(XTASK) test-deep
bench: ## Measure speed and memory beside a floor client (BENCH=full, BENCH_ONLY=a,d, BENCH_KIND=tf, BENCH_PEERS=1)
	@$(XTASK) bench
cluster: ## Start a local cluster (NAME=dev)
	@$(XTASK) cluster $(or $(NAME),dev)
cluster-down: ## Remove every trace of it (NAME=dev)
	@$(XTASK) cluster-down $(or $(NAME),dev)
kubectl: ## Run kubectl against it (NAME=dev ARGS="get pods")
	@$(XTASK) kubectl $(or $(NAME),dev) -- $(ARGS)
kueue: ## Deploy Kueue on it (NAME=dev)
	@$(XTASK) kueue $(or $(NAME),dev)
manifests: ## Generate manifests and reference documents from the types
	@cargo run -q -p training-manifests -- generate
spark-recordings: ## Record again what spark-submit makes of the applications that ours is compared with
	@$(XTASK) spark-recordings
pictures: ## Draw the dashboards again, from the metrics of a test run
	@TRAINYARD_PICTURES=$(CURDIR)/docs/pictures TRAINYARD_TESTS=every_query_of_the_dashboards $(XTASK) test node built api
peers: ## Build the Go operators that ours are compared with
	@$(XTASK) peers
peer-recordings: ## Record again what they do with the jobs of the comparison (ONLY=missing)
	@$(XTASK) peer-recordings $(ONLY)
image-%: ## Build an operator's image as an archive (OUT=file)
	@$(XTASK) image $* $(or $(OUT),target/$*.tar)
release: ## Write all release artifacts (OUT=dir REGISTRY=registry.example URL=https://… ARCHITECTURES=amd64)
	@$(XTASK) release "$(or $(OUT),target/release-$(shell git rev-parse --short HEAD))" "$(REGISTRY)" "$(URL)"
docs: ## Build the documents as a book with search
	@$(XTASK) book
charts: ## Write the Helm charts (OUT=dir)
	@cargo run -q -p training-manifests -- charts $(or $(OUT),target/charts)
run-%: ## Run an operator outside a cluster, against the current kubeconfig
	@cargo run -p $* -- --log-format compact
clean: ## Remove what was built in this checkout
	@cargo clean
clean-cache: ## Remove what is cached outside this checkout
	@$(XTASK) clean-cache
