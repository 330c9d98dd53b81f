"""Inference on the CPU: a session, several in parallel, and the native kernels that they load."""
