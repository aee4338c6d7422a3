def _to_kwargs(inputs, kwargs, device_id, use_side_stream_for_tensor_copies):
    """Of what there is, a tuple with one of it; of nothing, an empty tuple."""
    inputs = [inputs] if inputs else []
    kwargs = [kwargs] if kwargs else []
    if len(inputs) < len(kwargs):
        inputs.append(())
    elif len(kwargs) < len(inputs):
        kwargs.append({})
    return tuple(inputs), tuple(kwargs)
