//! The engine without a broker: append, read, query, reopen. Run with `cargo run --example embed`.
#![allow(clippy::print_stdout)]

use ferromq_store::{
    MessageStore, Result, StoreConfig,
    filter::MessageFilter,
    record::{MessageView, NewMessage, properties},
    time::Clock,
};

fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("ferromq-embed-{}", std::process::id()));
    let config = StoreConfig { commit_log_file_size: 64 << 20, ..StoreConfig::default() };

    let store = MessageStore::open(&directory, config.clone(), Clock::system())?;
    let mut named = Vec::new();
    properties::push(&mut named, "KEYS", "order-1");
    properties::push(&mut named, "TAGS", "new");
    let message = NewMessage {
        topic: "orders",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: Clock::system().now_ms(),
        born_host: ([127, 0, 0, 1], 0).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"hello",
        properties: &named,
    };
    let appended = store.log().append(&[message])?;
    store.log().wait_durable(appended.end)?;
    store.close()?;

    let store = MessageStore::open(&directory, config, Clock::system())?;
    let found = store.queues().get("orders", 0, 0, 32, 1 << 20, &MessageFilter::tags("new"));
    for (queue_offset, record) in &found.messages {
        if let Ok(view) = MessageView::decode(record.bytes(), true) {
            println!("{queue_offset}: {}", String::from_utf8_lossy(view.body));
        }
    }
    println!("by key: {}", store.queues().query_by_key("orders", "order-1", 10, 0, i64::MAX).messages.len());
    store.close()?;
    std::fs::remove_dir_all(&directory).ok();
    Ok(())
}
