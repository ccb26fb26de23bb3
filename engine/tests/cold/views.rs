//! A layer of whose file only a part counts.

use std::ops::Range;
use std::sync::Arc;

use engine::tenant::layer_map::Layer;
use engine::tenant::storage_layer::{DeltaLayerWriter, PersistentLayerDesc, ReconstructState, read_identity};
use errors::StorageError;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use virtual_file::fs;

use crate::world::{World, context, key};

const LSNS: Range<Lsn> = Lsn(0x100)..Lsn(0x110);

/// A layer with a value of each of eight keys at each LSN.
async fn whole(world: &World) -> Result<Layer, StorageError> {
    let ctx = context();
    let keys = key(0, 0)..key(0, 8);
    let mut writer = DeltaLayerWriter::create(world.conf, world.timeline, world.tenant, keys, LSNS, &ctx).await?;
    for at in 0..8 {
        for lsn in (LSNS.start.0..LSNS.end.0).map(Lsn) {
            writer.put_value(key(0, at), lsn, &Value::Image(format!("{at} {lsn}").into_bytes().into())).await?;
        }
    }
    let (desc, temp) = writer.finish(&ctx).await?;
    let identity = read_identity(&temp).await?;
    let layer = Layer::new(&world.conf.resources, &world.timeline_dir(), desc, 1, identity);
    fs::rename(&temp, layer.path()).await?;
    Ok(layer)
}

/// The LSN of the newest value of a key that a layer has.
async fn newest(layer: &Arc<Layer>, at: u32) -> Result<Option<Lsn>, StorageError> {
    let mut state = ReconstructState::new();
    let keyspace = KeySpace::single(key(0, at)..key(0, at + 1));
    layer.collect(&keyspace, Lsn(0)..Lsn(0x1000), &mut state, &context()).await?;
    let (_, history) = state.into_histories().pop_first().unzip();
    Ok(history.and_then(|history| history.image).map(|(lsn, _)| lsn))
}

#[tokio::test]
async fn only_what_is_visible_is_read() -> Result<(), StorageError> {
    let world = World::new().await;
    let layer = Arc::new(whole(&world).await?);
    assert_eq!(newest(&layer, 3).await?, Some(LSNS.end - 1));
    let file = layer.desc().clone();
    let part = PersistentLayerDesc { key_range: key(0, 2)..key(0, 5), lsn_range: Lsn(0x104)..Lsn(0x108), ..file };
    let view = Arc::new(whole(&world).await?.showing(part.clone()));
    assert_eq!((view.desc(), view.file_desc()), (&part, layer.desc()));
    assert_eq!(newest(&view, 3).await?, Some(Lsn(0x107)));
    Ok(())
}
