//! Faulty response bodies.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, Result};

/// The same request, shifted by some bytes.
pub(crate) fn shifted(options: GetOptions) -> GetOptions {
    let range = match options.range {
        Some(GetRange::Bounded(range)) if range.start > 0 => GetRange::Bounded(range.start - 1..range.end - 1),
        Some(GetRange::Bounded(range)) => GetRange::Bounded(range.start..range.end.div_ceil(2)),
        _ => GetRange::Suffix(1),
    };
    GetOptions { range: Some(range), ..options }
}

async fn with(got: GetResult, body: impl FnOnce(Bytes) -> Vec<Bytes>, then_hang: bool) -> Result<GetResult> {
    let (meta, range, attributes) = (got.meta.clone(), got.range.clone(), got.attributes.clone());
    let pieces = stream::iter(body(got.bytes().await?).into_iter().map(Ok));
    let payload = if then_hang { pieces.chain(stream::pending()).boxed() } else { pieces.boxed() };
    let payload = GetResultPayload::Stream(payload);
    Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
}

/// Half of the body, after which it hangs forever.
pub(crate) async fn stuck(got: GetResult) -> Result<GetResult> {
    with(got, |whole| vec![whole.slice(..whole.len() / 2)], true).await
}

/// Half of the body, after which it ends.
pub(crate) async fn truncated(got: GetResult) -> Result<GetResult> {
    with(got, |whole| vec![whole.slice(..whole.len() / 2)], false).await
}

/// The body with one bit flipped.
pub(crate) async fn corrupted(got: GetResult) -> Result<GetResult> {
    let flip = |whole: Bytes| {
        let mut bytes = whole.to_vec();
        let middle = bytes.len() / 2;
        if let Some(byte) = bytes.get_mut(middle) {
            *byte ^= 0x10;
        }
        vec![bytes.into()]
    };
    with(got, flip, false).await
}

/// The same response, keeping `thing` alive until the body has ended.
pub(crate) fn holding<T: Send + 'static>(got: GetResult, thing: T) -> GetResult {
    match got.payload {
        GetResultPayload::Stream(body) => {
            let end = stream::once(async move {
                drop(thing);
            });
            let payload = GetResultPayload::Stream(body.chain(end.filter_map(|()| async { None })).boxed());
            GetResult { payload, ..got }
        }
        GetResultPayload::File(..) => got,
    }
}
