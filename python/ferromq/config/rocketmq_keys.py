"""
RocketMQ's configuration keys of servers that have no effect here, and those of which one value alone may stand.

A key without effect is named at the start, where it harms no promise. A key is refused where a server that passes it
over would promise less than was asked for, or do something else. Keys that have an effect are in `config`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ferromq.config.values import boolean, only, whole

_THREADS = "threads and their queues are ferromq's own"
_NETWORK = "connections are served without Netty; network_memory bounds their buffers"
_CLIENT_SIDE = "connections to other servers have fixed limits"
_FILES = "files are mapped, filled and closed in ferromq's own way"
_DELETION = "files are deleted as soon as they may be and nothing reads them"
_RECOVERY = "recovery checks from the last checkpoint on, and makes queues and index again"
_REPLICAS = "logs are not replicated yet"
_CONTROLLER = "there is no controller that chooses masters"
_ROCKSDB = "nothing is kept in RocksDB"
_POP = "messages in flight are kept in the store's table of leases, without revive topics and their buffers"
_WATCH = "statistics are kept in ferromq's own way; mqadmin brokerStatus shows them"
METRICS = "no metrics are exported"
ACCESS = "who may do what is not checked"
_LITE = "lite topics and queues are not served"
_COLD = "reads of old messages are not throttled"
_TIMERS = "times of delivery are kept in ferromq's own way"
_COMPACTION = "topics that keep the last message of each key are not served"
_OLD = "RocketMQ 5 does not read it either"
_REGISTRATION = "name servers are sent whole tables; force_register and compress_registration say how"
_TRANSACTIONS = "operations of transactions are written one by one"
_POLLS = "pulls and receives wait until messages come or their time is up"
_QUERIES = "queries and searches have limits of their own"
_SERVER_FILE = "the file is the one that --config names"

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
        serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
        serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds transferMsgByHeap useEpollNativeSelector
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
        enableRequestMetrics enableStatsMetrics enableTransactionMetrics metricGrpcExporterIntervalInMills
        metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints
        metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
        metricsPromExporterHost metricsPromExporterPort transactionMetricFlushInterval
    """,
    ACCESS: """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath authenticationMetadataProvider
        authenticationProvider authenticationStrategy authenticationWhitelist authorizationMetadataProvider
        authorizationProvider authorizationStrategy authorizationWhitelist clusterName configName initAuthenticationUser
        innerClientAuthenticationCredentials migrateAuthFromV1Enabled statefulAuthenticationCacheExpiredSecond
        statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
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
    "offsets of broadcast groups are the clients'": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore
    """,
    "a group that is behind is served as any other": "consumerFallbehindThreshold",
    "the topics named after broker and cluster, and groups of the system, are always there": """
        brokerTopicEnable clusterTopicEnable enableCreateSysGroup
    """,
    "client_lease says how long a client without a heartbeat counts": "subscriptionExpiredTimeout",
    "offsets that are reset are held by the broker, and clients are told": "useServerSideResetOffset",
    "retention_disk_usage counts the use of the disk alone": "logicalDiskSpaceCleanForciblyThreshold",
    "logs are not replicated yet, so slaves are told no address of one": "brokerIP2",
    "logs are not replicated yet, so nothing listens for slaves": "haListenPort",
    "slaves have no messages of their master yet": "slaveReadEnable",
}


def by_key(groups: Mapping[str, str]) -> dict[str, str]:
    """Return each key of *groups*, which hold keys by reason, with its reason."""
    return {key: why for why, names in groups.items() for key in names.split()}


WITHOUT_EFFECT: Mapping[str, str] = by_key(_BROKER_GROUPS)
"""Each key, and why it has no effect."""

_ON_REQUESTS = "requests are answered by handler_threads, which wait in no queue of their own"
NAME_SERVER_WITHOUT_EFFECT: Mapping[str, str] = by_key(
    {
        _NETWORK: """
            enableShutdownGracefully serverCallbackExecutorThreads serverNettyWorkerGroupEnable
            serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
            serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds useEpollNativeSelector
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
        "a broker is forgotten at once": "unRegisterBrokerQueueCapacity",
        "options that are changed are kept in the file that --config names": "configStorePath rocketmqHome",
        "routes are not taken from another environment": "productEnvName",
    }
)
"""The same for a name server."""

_Read = Callable[[str], dict[str, Any]]


def flag(allowed: str, why: str) -> _Read:
    """Take *allowed* alone, true or false; another value is refused for the reason *why*."""
    return lambda text: only(str(boolean(text)).lower(), allowed, why)


def _number(allowed: int, why: str) -> _Read:
    return lambda text: only(str(whole(text)), str(allowed), why)


def fixed(allowed: str, why: str) -> _Read:
    """Take *allowed* alone; another value is refused for the reason *why*."""
    return lambda text: only(text, allowed, why)


def _never(why: str) -> _Read:
    def read(_text: str) -> dict[str, Any]:
        raise ValueError(why)

    return read


def _one_replica(text: str) -> dict[str, Any]:
    return only(str(max(whole(text), 1)), "1", f"{_REPLICAS}, and no send would wait for a slave")


def _metrics(text: str) -> dict[str, Any]:
    if text not in {"DISABLE", "0"}:
        raise ValueError(f"{text} is asked, but {METRICS}; use DISABLE, and mqadmin brokerStatus or rocketmq-exporter")
    return {}


_CONTAINER = "several brokers in one process are not served; start one broker for each of their files"
_ADDRESS_SERVER = "name servers are not looked up; name each in namesrvAddr"
_PLAINTEXT: Mapping[str, _Read] = {"useTLS": flag("false", "connections to other servers are not encrypted")}

REFUSED: Mapping[str, _Read] = {
    # Who may do what.
    **dict.fromkeys(("aclEnable", "authenticationEnabled", "authorizationEnabled"), flag("false", ACCESS)),
    **_PLAINTEXT,
    # Copies of messages, and who is the master.
    **dict.fromkeys(("inSyncReplicas", "minInSyncReplicas", "totalReplicas"), _one_replica),
    **dict.fromkeys(
        ("allAckInSyncStateSet", "enableAutoInSyncReplicas", "duplicationEnable", "lockInStrictMode"),
        flag("false", _REPLICAS),
    ),
    **dict.fromkeys(
        ("enableSlaveActingMaster", "enableRemoteEscape"), flag("false", "no slave stands in for a lost master")
    ),
    "enableDLegerCommitLog": flag("false", "logs are not replicated"),
    "enableControllerMode": flag("false", _CONTROLLER),
    **dict.fromkeys(("brokerConfigPaths", "brokerContainerIP"), _never(_CONTAINER)),
    "inBrokerContainer": flag("false", _CONTAINER),
    **dict.fromkeys(("fetchNamesrvAddrByAddressServer", "fetchNameSrvAddrByDnsLookup"), flag("false", _ADDRESS_SERVER)),
    # Where messages lie.
    "storeType": fixed("default", "only the store of files is served"),
    "configManagerVersion": fixed("v1", f"{_ROCKSDB}: topics, groups and offsets lie in files"),
    **dict.fromkeys(
        ("timerRocksDBEnable", "transRocksDBEnable", "indexRocksDBEnable", "rocksdbCQDoubleWriteEnable"),
        flag("false", _ROCKSDB),
    ),
    "transWriteOriginTransHalfEnable": flag("true", f"{_ROCKSDB}: half messages lie in their topic"),
    "messageStorePlugIn": fixed("", "the store takes no Java classes, so there is no tier behind it"),
    "transientStorePoolEnable": flag("false", "a message that is acknowledged is in its file, not in memory alone"),
    "enableConsumeQueueExt": flag("false", "consume queues are written and read without an extension"),
    "forceVerifyPropCRC": flag("false", "a record without a checksum over all of it is taken"),
    "replicasPerDiskPartition": _number(
        1, "each store counts the whole disk; bound the size of each by retention_total_bytes, in TOML"
    ),
    # Which messages are delivered, and how.
    **dict.fromkeys(
        ("enableLmq", "enableMultiDispatch"), flag("false", "a message is delivered to the queue of its topic alone")
    ),
    "clearRetryTopicWhenDeleteTopic": flag("true", "the retry topics of a deleted topic are deleted with it"),
    "rejectPullConsumerEnable": flag("false", "pull consumers are served"),
    "litePullMessageEnable": flag("true", "pull consumers are served"),
    "defaultMessageRequestMode": fixed("PULL", "a group pulls until mqadmin setConsumeMode says otherwise"),
    "serverLoadBalancerEnable": flag("true", "queues are dealt out by the broker to members that ask for it"),
    "disableConsumeIfConsumerReadSlowly": flag("false", "a group that is behind is served as any other"),
    "enablePopMessageThreshold": flag("false", "the messages that a group has in flight have no such limit"),
    "priorityOrderAsc": flag("true", "the queue with the highest number has the highest priority"),
    "timerStopEnqueue": flag("false", "messages with a time of delivery are always taken up; use timerWheelEnable"),
    "timerCongestNumEachSlot": _number((1 << 31) - 1, "no time of delivery has a limit of messages"),
    "allowRecallWhenBrokerNotWriteable": flag("true", "messages are taken back whatever the broker's permission is"),
    "enableRegisterProducer": flag("true", "producers are known, so that they are asked about transactions"),
    "startAcceptSendRequestTimeStamp": _number(0, "sends are taken from the start"),
    "validateSystemTopicWhenUpdateTopic": flag("true", "topics of the system cannot be changed"),
    # What watches the broker.
    "metricsExporterType": _metrics,
}
"""Keys of a broker of which one value is how it works here, and another one is refused."""

NAME_SERVER_REFUSED: Mapping[str, _Read] = {
    "clusterTest": flag("false", "routes are not taken from another environment"),
    "enableControllerInNamesrv": flag("false", "there is no controller in this name server"),
    **_PLAINTEXT,
}
"""The same of a name server."""
