//! Metrics with one label whose values are known in advance, so that adding to one needs no look-up.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// A label with a fixed set of values.
pub trait LabelEnum: Copy + Debug + Eq + Hash + Send + Sync + 'static {
    /// The label's name.
    const LABEL: &'static str;
    /// All values, in order of their numbers.
    const ALL: &'static [Self];
    /// The value's text.
    fn text(self) -> &'static str;
    /// The value's index in [`LabelEnum::ALL`].
    fn number(self) -> usize;
}

macro_rules! label_enum {
    ($(#[doc = $doc:literal])+ $name:ident, $label:literal {
        $($(#[doc = $variant_doc:literal])+ $variant:ident = $text:literal,)+
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[doc = $variant_doc])+ $variant,)+
        }

        impl LabelEnum for $name {
            const LABEL: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$variant,)+];
            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
            fn number(self) -> usize {
                self as usize
            }
        }
    };
}

label_enum! {
    /// Kinds of requests of the page service.
    SmgrQuery, "smgr_query_type" {
        /// Whether a relation exists.
        GetRelExists = "get_rel_exists",
        /// The number of blocks of a relation.
        GetRelSize = "get_rel_size",
        /// A page.
        GetPageAtLsn = "get_page_at_lsn",
        /// A database's size.
        GetDbSize = "get_db_size",
        /// A whole SLRU segment.
        GetSlruSegment = "get_slru_segment",
    }
}
label_enum! {
    /// Commands of the page service.
    ComputeCommand, "command" {
        /// `pagestream_v2`.
        PageStreamV2 = "pagestream_v2",
        /// `pagestream_v3`.
        PageStreamV3 = "pagestream_v3",
        /// `basebackup`.
        Basebackup = "basebackup",
        /// `fullbackup`.
        Fullbackup = "fullbackup",
        /// `lease lsn`.
        LeaseLsn = "lease_lsn",
    }
}
label_enum! {
    /// Operations on layers.
    StorageOperation, "operation" {
        /// Writing a frozen layer as a file.
        LayerFlush = "layer flush",
        /// Opening a timeline.
        LoadLayerMap = "load layer map",
        /// Creating a branch.
        CreateBranch = "create branch",
        /// Importing a base backup.
        Import = "import",
        /// Bringing the bucket to a new state of a timeline.
        Publication = "publication",
    }
}
label_enum! {
    /// What the tasks of the write path spend their time on, from the connection to the bucket. At any moment a task is
    /// in one of its stages, so those of one task add up to its time.
    IngestStage, "stage" {
        /// Receiver: the server has sent nothing more; meanwhile it is told how far all is.
        WaitForServer = "wait_for_server",
        /// Receiver: reads WAL from the connection, and passes it on.
        Receive = "receive",
        /// Receiver: the queue before the decoder is full.
        WaitForDecoder = "wait_for_decoder",
        /// Decoder: there is no WAL to decode.
        WaitForWal = "wait_for_wal",
        /// Decoder: assembles WAL into records, and checks them.
        Decode = "decode",
        /// Decoder: the queue before the ingest is full.
        WaitForIngest = "wait_for_ingest",
        /// Ingest: there are no records.
        WaitForRecords = "wait_for_records",
        /// Ingest: applies records that change sizes, directories or counters, and may read them first.
        Metadata = "metadata",
        /// Ingest: turns all other records into serialized values, and makes those in the layer visible.
        Serialize = "serialize",
        /// Ingest: is slowed down for lack of room on the disk, or because compaction is behind.
        WaitForRoom = "wait_for_room",
        /// Ingest: waits for the locks of the open layer.
        WriterLock = "writer_lock",
        /// Ingest: too many frozen layers wait to be written.
        WaitForSeal = "wait_for_seal",
        /// Ingest: freezes the open layer, and creates the next one.
        Freeze = "freeze",
        /// Ingest: waits for a write to the disk, so that its buffer can be filled again.
        WaitForBuffer = "wait_for_buffer",
        /// Ingest: copies values into a buffer with their checksums; starts the write of one that is full.
        Append = "append",
        /// Ingest: puts the places of values into the layer's index.
        IndexInsert = "index_insert",
        /// Seal: as many layers are written as may be at once.
        WaitForTurn = "wait_for_turn",
        /// Seal: sorts the index of a frozen layer.
        Sort = "sort",
        /// Seal: brings the changes of a page together.
        ChainMoves = "chain_moves",
        /// Seal: makes and writes index and filter.
        IndexWrite = "index_write",
        /// Seal: waits until the file is on disk, under its final name.
        Fsync = "fsync",
        /// Seal: stores the manifest that names the layer, and shows the layer to readers.
        Publish = "publish",
        /// Upload: uploads layers.
        Upload = "upload",
        /// Upload: writes the index part.
        IndexPart = "index_part",
        /// Upload: checks that no other server has taken the tenant over.
        Confirm = "confirm",
        /// Upload: writes what a lost index part could be rebuilt from, and removes objects that nobody needs.
        Tidy = "tidy",
    }
}
label_enum! {
    /// Jobs of compaction.
    CompactionJob, "job" {
        /// Sorting of L0 layers by key.
        Sort = "sort",
        /// Merging of sorted layers.
        Merge = "merge",
        /// Making of images at the end of what is sorted.
        Image = "image",
        /// Making of images at the cutoff.
        Fold = "fold",
        /// Rewriting of layers below the cutoff of which little is needed.
        Trim = "trim",
    }
}
label_enum! {
    /// Operations on files.
    IoOperation, "operation" {
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
    }
}

label_enum! {
    /// The purpose of a bucket request: budgets and metrics are kept for each class.
    RequestClass, "class" {
        /// A read that somebody waits for.
        Read = "read",
        /// Prefetching, or fetching whole layers, for later reads.
        Prefetch = "prefetch",
        /// Uploading layers.
        Upload = "upload",
        /// WAL that only the journal has.
        Tail = "tail",
        /// Index parts, generations, listings: small requests on which safety depends.
        Control = "control",
        /// Removing objects.
        Delete = "delete",
        /// Verifying stored data.
        Scrub = "scrub",
    }
}
label_enum! {
    /// Kinds of failure of a bucket request.
    StoreFault, "kind" {
        /// No answer in time.
        Timeout = "timeout",
        /// No connection, or an error of the bucket itself.
        Unavailable = "unavailable",
        /// The bucket asks for fewer requests.
        Throttled = "throttled",
        /// Credentials are missing, have expired, or do not permit this.
        Denied = "denied",
        /// The answer does not match the request.
        Malformed = "malformed",
    }
}

/// A metric that can be kept for each value of a label.
pub trait Metric: Clone + Debug + EncodeMetric + TypedMetric + Send + Sync + 'static {}
impl Metric for Counter {}
impl Metric for Counter<f64, AtomicU64> {}
impl Metric for Histogram {}

/// A label's name and value.
pub(super) type Label = [(&'static str, &'static str); 1];

/// One metric for each value of a label.
#[derive(Debug)]
pub struct ByLabel<L: LabelEnum, M: Metric> {
    metrics: Vec<M>,
    family: Family<Label, M, fn() -> M>,
    label: PhantomData<L>,
}

impl<L: LabelEnum> ByLabel<L, Counter> {
    pub(super) fn counters() -> Self {
        Self::new(Counter::default)
    }
}

impl<L: LabelEnum> ByLabel<L, Counter<f64, AtomicU64>> {
    pub(super) fn seconds() -> Self {
        Self::new(Counter::default)
    }
}

impl<L: LabelEnum> ByLabel<L, Histogram> {
    pub(super) fn histograms(make: fn() -> Histogram) -> Self {
        Self::new(make)
    }
}

impl<L: LabelEnum, M: Metric> ByLabel<L, M> {
    fn new(make: fn() -> M) -> Self {
        let family = Family::new_with_constructor(make);
        let metrics = L::ALL.iter().map(|value| family.get_or_create_owned(&[(L::LABEL, value.text())])).collect();
        Self { metrics, family, label: PhantomData }
    }

    /// The metric of one value.
    pub fn of(&self, value: L) -> &M {
        self.metrics.get(value.number()).expect("there is a metric for every value")
    }

    pub(super) fn family(&self) -> Family<Label, M, fn() -> M> {
        self.family.clone()
    }
}
