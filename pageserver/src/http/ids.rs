//! Text forms of ids, LSNs and keys, for the OpenAPI document.

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! texts {
    ($($(#[doc = $doc:literal])+ $type:ident = $name:literal: $pattern:literal, $example:literal;)+) => {
        $(
            $(#[doc = $doc])+
            pub(crate) enum $type {}

            impl PartialSchema for $type {
                fn schema() -> RefOr<Schema> {
                    let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some($pattern));
                    text.examples([$example]).into()
                }
            }

            impl ToSchema for $type {
                fn name() -> Cow<'static, str> {
                    $name.into()
                }
            }
        )+
    };
}

texts! {
    /// A tenant, or a shard of one.
    TenantShardText = "TenantShardId": "^[0-9a-fA-F]{32}(-[0-9a-fA-F]{4})?$", "00112233445566778899aabbccddeeff";
    /// A tenant.
    TenantText = "TenantId": "^[0-9a-fA-F]{32}$", "00112233445566778899aabbccddeeff";
    /// A timeline.
    TimelineText = "TimelineId": "^[0-9a-fA-F]{32}$", "ffeeddccbbaa99887766554433221100";
    /// An LSN.
    LsnText = "Lsn": "^[0-9a-fA-F]{1,8}/[0-9a-fA-F]{1,8}$", "0/16B3748";
    /// The name of a hold.
    HoldNameText = "HoldName": "^[^\\x00-\\x1f\\x7f]{1,100}$", "before release 7";
    /// The id of a server.
    ServerText = "ServerId": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$", "pageserver-a";
    /// A key of the engine.
    KeyText = "Key": "^[0-9a-fA-F]{36}$", "000000067F0000000500000A3900000000AB";
}
