//! PyTorchJob operator.
