"""Export BERT-family PyTorch checkpoints to verified ONNX bundles.

`from bert_export.export import export` needs the extra `export`; nothing is imported here, so that the command line
starts without it.
"""
