# The image of one operator: its static binary at /NAME, the licences of what is
# in it in /licenses, and nothing else.
#
#   docker build --build-arg OPERATOR=pytorch-operator -t pytorch-operator:dev .
#
# compiles it in the image named by RUST_IMAGE. With a binary that is there
# already, at target/x86_64-unknown-linux-gnu/release/NAME or where BINARY says,
# and its licences beside it, no other image is needed:
#
#   cargo xtask licences pytorch-operator target/x86_64-unknown-linux-gnu/release/pytorch-operator.licences
#   docker build --target prebuilt --build-arg OPERATOR=pytorch-operator -t pytorch-operator:dev .
#
# An entry point can't contain build arguments, so that these images have none:
# pods say `command: ["/pytorch-operator"]`, as the manifests in this repository do.
# BuildKit, podman and buildah skip the stages that a build doesn't need.
# The compiler's image is an argument, so that a build takes it from whatever registry it may, by a digest where that is wanted. It is not part
# of the result.
ARG RUST_IMAGE=rust:1.95

FROM scratch AS prebuilt
ARG OPERATOR=pytorch-operator
ARG BINARY=target/x86_64-unknown-linux-gnu/release/${OPERATOR}
ARG LICENCES=${BINARY}.licences
COPY --chmod=0755 ${BINARY} /${OPERATOR}
COPY --chmod=0644 ${LICENCES} /licenses/THIRD-PARTY.txt
COPY --chmod=0644 LICENSE /licenses/LICENSE
USER 65532:65532

FROM ${RUST_IMAGE} AS builder
ARG OPERATOR=pytorch-operator
WORKDIR /src
COPY . .
RUN target="$(uname -m)-unknown-linux-gnu" \
 && RUSTFLAGS="-C target-feature=+crt-static" \
    cargo build --release --locked --target "$target" -p "$OPERATOR" \
 && mkdir -p /out/licenses \
 && mv "target/$target/release/$OPERATOR" /out/ \
 && cargo run --quiet --locked -p xtask -- licences "$OPERATOR" /out/licenses/THIRD-PARTY.txt \
 && cp LICENSE /out/licenses/

FROM scratch
COPY --from=builder /out/ /
USER 65532:65532
