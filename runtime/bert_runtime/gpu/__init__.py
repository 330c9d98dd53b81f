"""Inference on NVIDIA GPUs: CUDA and TensorRT sessions, CUDA graphs by shape, page-locked inputs."""
