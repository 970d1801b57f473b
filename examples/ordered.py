"""The steps of each account in order, several accounts at once; one that fails is tried again before the next."""

import ferromq

STEPS = [(account, step) for step in ("open", "deposit", "close") for account in ("anna", "ben")]


def main() -> dict[str, list[str]]:
    """Return the steps of each account in the order in which they were done."""
    done: dict[str, list[str]] = {}
    failed: set[str] = set()
    with ferromq.embedded() as mq:
        with mq.admin() as admin:
            admin.create_topic("accounts", message_type="FIFO")
            admin.create_group("bank", fifo=True, retry_delays=[0.1])

        with mq.producer() as producer:
            for account, step in STEPS:
                producer.send("accounts", step.encode(), message_group=account)

        with mq.consumer("bank", "accounts") as consumer:

            def handle(message: ferromq.MessageView) -> None:
                account, step = str(message.message_group), message.body.decode()
                if step == "deposit" and account not in failed:
                    failed.add(account)
                    raise ConnectionError("the ledger is away for a moment")
                done.setdefault(account, []).append(step)
                print(f"{account}: {step}")
                if sum(map(len, done.values())) == len(STEPS):
                    consumer.stop()

            consumer.run(handle, concurrency=2)
    return done


if __name__ == "__main__":
    main()
