use super::*;

#[test]
fn a_scrape_has_every_value_of_every_label_and_ends() {
    METRICS.smgr_query_seconds.of(SmgrQuery::GetPageAtLsn).observe(0.003);
    METRICS.compute_commands.of(ComputeCommand::LeaseLsn).inc_by(3);
    METRICS.storage_operations_seconds_global.of(StorageOperation::LayerFlush).observe(1.0);
    let text = METRICS.scrape(&Registry::default(), Exposition::OpenMetrics).unwrap();
    for line in [
        "pageserver_smgr_query_seconds_count{smgr_query_type=\"get_page_at_lsn\"} 1",
        "pageserver_smgr_query_seconds_count{smgr_query_type=\"get_db_size\"} 0",
        "pageserver_compute_commands_total{command=\"lease_lsn\"} 3",
        "pageserver_compute_commands_total{command=\"basebackup\"} 0",
        "pageserver_storage_operations_seconds_global_sum{operation=\"layer flush\"} 1.0",
        "# TYPE pageserver_wal_ingest_records_received counter",
        "# TYPE pageserver_get_vectored_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("pageserver_build_info{version="));
    assert!(text.contains("pageserver_process_resident_memory_bytes "));
    assert!(text.ends_with("# EOF\n"));
    assert!(!text.contains("_total_total") && !text.contains(".."), "{text}");
    let text = METRICS.scrape(&Registry::default(), Exposition::Text).unwrap();
    for line in [
        "# TYPE pageserver_wal_ingest_records_received_total counter",
        "# TYPE pageserver_build_info gauge",
        "pageserver_compute_commands_total{command=\"basebackup\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}
