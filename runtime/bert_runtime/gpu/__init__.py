"""GPU inference: CUDA and TensorRT sessions, CUDA graphs per shape, page-locked inputs."""
