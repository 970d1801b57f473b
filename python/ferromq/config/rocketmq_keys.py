"""
RocketMQ's configuration keys of servers that have no effect here, and those that only one value is accepted for.

A server logs the harmless keys without effect at the start. It refuses a key if ignoring it would break a promise that
the key makes. Keys with an effect are beside the options of `config`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ferromq.config.values import boolean, only, whole

_THREADS = "threads and their queues are ferromq's own"
_NETWORK = "connections are served without Netty; network_memory bounds their buffers"
_CLIENT_SIDE = "connections to other servers have fixed limits"
_FILES = "files are mapped, filled and closed in ferromq's own way"
_DELETION = "expired files are deleted as soon as nothing reads them"
_RECOVERY = "recovery checks from the last checkpoint on, and rebuilds queues and index"
_REPLICAS = "logs are not replicated yet"
_CONTROLLER = "there is no controller that elects masters"
_ROCKSDB = "RocksDB is not used"
_POP = "messages in flight are kept in the store's lease table, without revive topics and their buffers"
_WATCH = "statistics have ferromq's own form; mqadmin brokerStatus shows them"
METRICS = "ferromq's metrics are cumulative, have the labels of docs/metrics.md, and all parts"
ACCESS = "users and policies are in memory, and in a file of the store directory"
_LITE = "lite topics and queues are not supported"
_COLD = "reads of old messages are not throttled"
_TIMERS = "delivery times are kept in ferromq's own way"
_COMPACTION = "compacted topics are not supported"
_OLD = "RocketMQ 5 does not read it either"
_REGISTRATION = "name servers get whole tables; see force_register and compress_registration"
_TRANSACTIONS = "op messages are written one by one"
_POLLS = "pulls and receives wait for messages or their timeout"
_QUERIES = "queries and searches have limits of their own"
_SERVER_FILE = "the file is the one given by --config"

_BROKER_GROUPS: Mapping[str, str] = {
    _THREADS: """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
        asyncSendEnable batchDispatchRequestThreadPoolNums brokerFastFailureEnable clientManageThreadPoolNums
        clientManagerThreadPoolQueueCapacity consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
        endTransactionPoolQueueCapacity endTransactionThreadPoolNums heartbeatThreadPoolNums
        heartbeatThreadPoolQueueCapacity litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
        loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity maxAsyncPutMessageRequests
        osPageCacheBusyTimeOutMills processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
        queryThreadPoolQueueCapacity replyThreadPoolQueueCapacity sendMessageThreadPoolNums sendThreadPoolQueueCapacity
        waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    """,
    _NETWORK: """
        enableNetWorkFlowControl enableShutdownGracefully serverCallbackExecutorThreads serverNettyWorkerGroupEnable
        serverPooledByteBufAllocatorEnable serverSelectorThreads
        serverWorkerThreads shutdownWaitTimeSeconds transferMsgByHeap useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark enableFastChannelEventProcess
    """,
    _CLIENT_SIDE: """
        channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
        clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
        enableReconnectForGoAway forwardTimeout maxReconnectIntervalTimeSeconds scanAvailableNameSrv socksProxyConfig
    """,
    _FILES: """
        cleanSwapedMapInterval commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum dataReadAheadEnable
        debugLockEnable dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread enableAsyncReput
        enableBuildConsumeQueueConcurrently enableRunningFlagsInFlush fastFailIfNoBufferInStorePool
        flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushDelayOffsetInterval flushIntervalConsumeQueue
        flushLeastPagesWhenWarmMapedFile indexFileReadEnable indexFileWriteEnable logicQueueForceSwapMapInterval
        logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSizeConsumeQueueExt mappedFileSwapEnable
        mapperFileSizeBatchConsumeQueue messageIndexSafe putConsumeQueueDataByFileChannel putMessageTimeout
        putMsgIndexHightWater searchBcqByCacheEnable sharedByteBufferNum spinLockCollisionRetreatOptimalDegree
        syncFlushTimeout topicQueueLockNum transientStorePoolSize travelCqFileNumWhenGetMessage useABSLock
        useReentrantLockWhenPutMessage wakeCommitWhenPutMessage warmMapedFileEnable writeWithoutMmap
        bitMapLengthConsumeQueueExt persistConsumerOffsetIncrementally delayOffsetUpdateVersionStep
        consumerOffsetUpdateVersionStep
    """,
    _DELETION: """
        cleanResourceInterval correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax
        destroyMapedFileIntervalForcibly diskFallRecorded enableCleanExpiredOffset maxBatchDeleteFilesNum
        redeleteHangedFileInterval
    """,
    _RECOVERY: """
        checkCRCOnRecover checkCommitLogOffsetOnRecover commitLogRecoverMaxNum enableAcceleratedRecovery
        enableLogConsumeQueueRepeatedlyBuildWhenRecover maxRecoveryCommitlogFiles recheckReputOffsetFromCq
        recoverConcurrently recoverThreadPoolNums maxChecksumRange
    """,
    _REPLICAS: """
        brokerHeartbeatInterval brokerNotActiveTimeoutMillis compatibleWithOldNameSrv disappearTimeAfterStart
        haFlowControlEnable haHousekeepingInterval haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup
        haSendHeartbeatInterval haTransferBatchSize maxHaTransferByteInSecond maxSlaveResendLength offsetCheckInSlave
        readUnCommitted sendHeartbeatTimeoutMillis skipPreOnline slaveTimeout syncBrokerMemberGroupPeriod
        syncFromLastFile syncMasterFlushOffsetWhenStartup
    """,
    _CONTROLLER: """
        asyncLearner brokerElectionPriority checkSyncStateSetPeriod controllerAddr controllerHeartBeatTimeoutMills
        dLegerGroup dLegerPeers dLegerSelfId enableBatchPush fetchControllerAddrByDnsLookup preferredLeaderId
        storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile syncBrokerMetadataPeriod
        syncControllerMetadataPeriod
    """,
    _ROCKSDB: """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin combineAssignOffsetCQType
        combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
        combineCQUseRocksdbForLmq enableRocksDBLog iteratorWhenUseRocksdbConsumeQueue maxRocksDBIndexQueryDays
        memTableFlushIntervalMs realTimePersistRocksDBConfig rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
        timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
        timerRecallToTimeWheelEnable timerRecallToTimelineEnable transactionCheckRocksdbCoreThreads
        transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity useSeparateStorePathForRocksdbCQ
        useSingleRocksDBForAllConfigs
    """,
    _POP: """
        appendAckAsync appendCkAsync defaultPopShareQueueNum enableNotifyAfterPopOrderLockRelease
        enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog enableSkipLongAwaitingAck
        initPopOffsetByCheckMsgInMem popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime
        popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable
        popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
        popFromRetryProbabilityForPriority popInflightMessageThreshold popResponseReturnActualRetryTopic
        popReviveConcurrency popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent
        retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
        skipWhenCKRePutReachMaxTimes enableRetryTopicV2 useSeparateRetryQueue
    """,
    _WATCH: """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount commercialSizePerMsg
        enableDetailStat enableScheduleMessageStats estimateAccumulation isolateLogEnable maxStatsIdleTimeInMinutes
        printChannelGroups printChannelGroupsMinNum sampleCountThreshold sampleSteps
        timerEnableCheckMetrics timerMetricSmallThreshold timerProgressLogIntervalMs useStaticSubscription
        maxClientEventCount
    """,
    METRICS: """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics enablePopMetrics enableRemotingMetrics
        enableRequestMetrics enableStatsMetrics enableTransactionMetrics metricLoggingExporterIntervalInMills
        metricsExportBatchMaxDataPoints metricsInDelta metricsLabel transactionMetricFlushInterval
    """,
    ACCESS: """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath clusterName configName
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond userCacheMaxNum
        userCacheRefreshSecond
    """,
    _LITE: """
        enableLiteEventMode enableLitePopLog enableLmqQuota enableLmqStats liteEventCheckInterval
        liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable
        liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK liteSubscriptionCheckInterval
        liteSubscriptionCheckTimeoutMills liteTtlCheckInterval maxLiteSubscriptionCount maxLmqConsumeQueueNum minLiteTTl
    """,
    _COLD: """
        accessMessageInMemoryHotRatio cgColdReadThreshold coldCtrStrategyEnable coldDataFlowControlEnable
        coldDataScanEnable globalColdReadThreshold timerColdDataCheckIntervalMs usePIDColdCtrStrategy
    """,
    _TIMERS: """
        appendTopicForTimerDeleteKey enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked timerEnableRetryUntilSuccess timerFlushIntervalMs
        timerGetMessageThreadNum timerInterceptDelayLevel timerPutMessageThreadNum timerReputServiceCorePoolSize
        timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerSkipUnknownError timerWheelSnapshotFlush
        timerWheelSnapshotIntervalMs
    """,
    _COMPACTION: """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
        enableCompaction maxOffsetMapSize
    """,
    _OLD: """
        abortFile autoMessageVersionOnTopicLen cleanOfflineBrokerInterval flushConsumerOffsetHistoryInterval
        highSpeedMode maxTopicLength pullBatchMaxMessageCount storeCheckpoint storePathConsumeQueue storePathIndex
    """,
    "RocketMQ 5 does not read it either; it reads mappedFileSizeCommitLog and mappedFileSizeConsumeQueue": """
        mapedFileSizeCommitLog mapedFileSizeConsumeQueue
    """,
    "RocketMQ 5 does not read it either; transactions are always checked": "checkTransactionMessageEnable",
    _REGISTRATION: """
        enableSingleTopicRegister enableSplitMetadata enableSplitRegistration fetchNamesrvAddrInterval
        loadBalancePollNameServerInterval splitMetadataSize splitRegistrationSize updateNameServerAddrPeriod
    """,
    _TRANSACTIONS: "transactionOpBatchInterval transactionOpMsgMaxSize",
    _POLLS: """
        longPollingEnable maxMessageFilterNumForNotification maxPopPollingSize popLongPollingForceNotifyInterval
        popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize realTimeNotifyConsumerChange
        shortPollingTimeMills useMessageFilterForNotification
    """,
    _QUERIES: """
        defaultQueryMaxNum enableCalcFilterBitMap expectConsumerNumUseFilter filterDataCleanTimeSpan filterSupportRetry
        maxConsumeQueueScan maxErrorRateOfBloomFilter maxMsgsNumBatch
    """,
    _SERVER_FILE: "brokerConfigPath rocketmqHome",
    "clients keep the offsets of broadcast groups": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore
    """,
    "a group with a backlog is served like any other": "consumerFallbehindThreshold",
    "the topics named after broker and cluster, and the system groups, always exist": """
        brokerTopicEnable clusterTopicEnable enableCreateSysGroup
    """,
    "client_lease sets how long a client without a heartbeat stays a member": "subscriptionExpiredTimeout",
    "the broker keeps reset offsets and sends them to clients": "useServerSideResetOffset",
    "retention_disk_usage counts the usage of the disk": "logicalDiskSpaceCleanForciblyThreshold",
    "logs are not replicated yet, so slaves get no address for it": "brokerIP2",
    "logs are not replicated yet, so there is no listener for slaves": "haListenPort",
    "slaves have no messages of their master yet": "slaveReadEnable",
}


def by_key(groups: Mapping[str, str]) -> dict[str, str]:
    """Return each key with its reason; *groups* has the keys of each reason."""
    return {key: why for why, names in groups.items() for key in names.split()}


WITHOUT_EFFECT: Mapping[str, str] = by_key(_BROKER_GROUPS)
"""Key → why it has no effect."""

_ON_REQUESTS = "handler_threads answer requests, without queues of their own"
NAME_SERVER_WITHOUT_EFFECT: Mapping[str, str] = by_key(
    {
        _NETWORK: """
            enableShutdownGracefully serverCallbackExecutorThreads serverNettyWorkerGroupEnable
            serverPooledByteBufAllocatorEnable serverSelectorThreads serverWorkerThreads shutdownWaitTimeSeconds
            useEpollNativeSelector
            writeBufferHighWaterMark writeBufferLowWaterMark
        """,
        _CLIENT_SIDE: """
            channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
            clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
            clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
            connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup enableReconnectForGoAway
            maxReconnectIntervalTimeSeconds scanAvailableNameSrv socksProxyConfig
        """,
        _ON_REQUESTS: """
            clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity
        """,
        "there is no controller in this name server": """
            controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId controllerRequestThreadPoolQueueCapacity
            controllerStorePath controllerThreadPoolNums controllerType electMasterMaxRetryCount
            enableElectUncleanMaster jraftConfig jRaftControllerRPCAddr jRaftElectionTimeoutMs jRaftGroupId
            jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs mappedFileSize
            metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
            metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
            metricsPromExporterHost metricsPromExporterPort notifyBrokerRoleChanged processReadEvent
            scanInactiveMasterInterval
        """,
        "brokers are unregistered at once": "unRegisterBrokerQueueCapacity",
        "changed options are written to the file given by --config": "configStorePath rocketmqHome",
        "routes do not come from another environment": "productEnvName",
    }
)
"""The same for a name server."""

_Read = Callable[[str], dict[str, Any]]


def flag(allowed: str, why: str) -> _Read:
    """Accept only *allowed*, true or false; *why* is the reason in the error for the other value."""
    return lambda text: only(str(boolean(text)).lower(), allowed, why)


def _number(allowed: int, why: str) -> _Read:
    return lambda text: only(str(whole(text)), str(allowed), why)


def fixed(allowed: str, why: str) -> _Read:
    """Accept only *allowed*; *why* is the reason in the error for another value."""
    return lambda text: only(text, allowed, why)


def _never(why: str) -> _Read:
    def read(_text: str) -> dict[str, Any]:
        raise ValueError(why)

    return read


def _one_replica(text: str) -> dict[str, Any]:
    return only(str(max(whole(text), 1)), "1", f"{_REPLICAS}, so no send waits for a slave")


_CONTAINER = "several brokers in one process are not supported; start a broker for each file"
_ADDRESS_SERVER = "name servers are not looked up; list them in namesrvAddr"
_PLAINTEXT: Mapping[str, _Read] = {"useTLS": flag("false", "connections to other servers are not encrypted")}

REFUSED: Mapping[str, _Read] = {
    # Access control.
    "aclEnable": flag(
        "false", "access control is that of RocketMQ 5.3; use authenticationEnabled and authorizationEnabled"
    ),
    **_PLAINTEXT,
    # Replication and the election of masters.
    **dict.fromkeys(("inSyncReplicas", "minInSyncReplicas", "totalReplicas"), _one_replica),
    **dict.fromkeys(
        ("allAckInSyncStateSet", "enableAutoInSyncReplicas", "duplicationEnable", "lockInStrictMode"),
        flag("false", _REPLICAS),
    ),
    **dict.fromkeys(
        ("enableSlaveActingMaster", "enableRemoteEscape"), flag("false", "slaves do not act for a lost master")
    ),
    "enableDLegerCommitLog": flag("false", "logs are not replicated"),
    "enableControllerMode": flag("false", _CONTROLLER),
    **dict.fromkeys(("brokerConfigPaths", "brokerContainerIP"), _never(_CONTAINER)),
    "inBrokerContainer": flag("false", _CONTAINER),
    **dict.fromkeys(("fetchNamesrvAddrByAddressServer", "fetchNameSrvAddrByDnsLookup"), flag("false", _ADDRESS_SERVER)),
    # Storage.
    "storeType": fixed("default", "only the file store is supported"),
    "configManagerVersion": fixed("v1", f"{_ROCKSDB}: topics, groups and offsets are in files"),
    **dict.fromkeys(
        ("timerRocksDBEnable", "transRocksDBEnable", "indexRocksDBEnable", "rocksdbCQDoubleWriteEnable"),
        flag("false", _ROCKSDB),
    ),
    "transWriteOriginTransHalfEnable": flag("true", f"{_ROCKSDB}: half messages are in their topic"),
    "messageStorePlugIn": fixed("", "the store cannot load Java classes, so there is no tiered storage"),
    "transientStorePoolEnable": flag("false", "an acknowledged message is in its file, not only in memory"),
    "enableConsumeQueueExt": flag("false", "consume queues have no extension"),
    "forceVerifyPropCRC": flag("false", "records without a checksum over all bytes are accepted"),
    "replicasPerDiskPartition": _number(
        1, "each store counts the whole disk; limit the size of each by retention_total_bytes, in TOML"
    ),
    # Delivery.
    **dict.fromkeys(
        ("enableLmq", "enableMultiDispatch"), flag("false", "a message is delivered only to the queue of its topic")
    ),
    "clearRetryTopicWhenDeleteTopic": flag("true", "a topic is always deleted with its retry topics"),
    "rejectPullConsumerEnable": flag("false", "pull consumers are always served"),
    "litePullMessageEnable": flag("true", "pull consumers are always served"),
    "defaultMessageRequestMode": fixed("PULL", "a group pulls until mqadmin setConsumeMode changes it"),
    "serverLoadBalancerEnable": flag("true", "the broker assigns queues to members that ask for it"),
    "disableConsumeIfConsumerReadSlowly": flag("false", "a group with a backlog is served like any other"),
    "enablePopMessageThreshold": flag("false", "the messages in flight of a group have no such limit"),
    "priorityOrderAsc": flag("true", "the queue with the highest number has the highest priority"),
    "timerStopEnqueue": flag("false", "timed messages are always scheduled; use timerWheelEnable"),
    "timerCongestNumEachSlot": _number((1 << 31) - 1, "the messages of one delivery time have no limit"),
    "allowRecallWhenBrokerNotWriteable": flag("true", "messages can be recalled whatever the broker's permission is"),
    "enableRegisterProducer": flag("true", "producers are always registered, for check-backs of transactions"),
    "startAcceptSendRequestTimeStamp": _number(0, "sends are accepted from the start"),
    "validateSystemTopicWhenUpdateTopic": flag("true", "system topics cannot be changed"),
}
"""Keys of a broker that only one value is accepted for: the one that describes ferromq."""

NAME_SERVER_REFUSED: Mapping[str, _Read] = {
    "clusterTest": flag("false", "routes do not come from another environment"),
    "enableControllerInNamesrv": flag("false", "there is no controller in this name server"),
    **_PLAINTEXT,
}
"""The same for a name server."""
