//! Request 15: a consumer commits its offset of a queue.

use super::{
    Caller,
    fields::{number, required},
};
use crate::{
    TransportError,
    hot::Hot,
    remoting::{RemotingCommand, codes::response},
};

/// Sets the committed offset of a group; a topic or group that is not known is asked for once.
pub(super) async fn update(
    hot: &Hot,
    caller: Caller,
    command: &RemotingCommand,
) -> Result<RemotingCommand, TransportError> {
    let (group, topic) = (required(command, "consumerGroup")?, required(command, "topic")?);
    let (queue_id, offset) = (number(command, "queueId")?, number(command, "commitOffset")?);
    hot.topic(topic, caller.peer).await?;
    hot.group(group, caller.peer).await?;
    hot.update_offset(group, topic, queue_id, offset)?;
    Ok(command.respond(response::SUCCESS, None))
}
