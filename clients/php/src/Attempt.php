<?php

declare(strict_types=1);

namespace Tickr;

/** The attempt that a handler executes. */
final class Attempt
{
    /** @var mixed The payload in arrays. Integers above 64 bits are strings. */
    public readonly mixed $payload;

    /**
     * @param string       $id          id of the job, the same in each of its attempts
     * @param RawJson      $payloadJson the payload as it was sent
     * @param int          $attempt     attempts used, this one included
     * @param int          $timeoutMs   time limit of the attempt in milliseconds
     * @param RawJson|null $checkpoint  what an earlier attempt saved
     * @param string|null  $traceparent W3C Trace Context of the request that enqueued the job
     * @param list<string> $tags
     */
    public function __construct(
        public readonly string $id,
        public readonly string $kind,
        public readonly string $queue,
        public readonly RawJson $payloadJson,
        public readonly int $attempt = 1,
        public readonly int $maxAttempts = 5,
        public readonly int $timeoutMs = 300_000,
        public readonly ?RawJson $checkpoint = null,
        public readonly ?string $traceparent = null,
        public readonly array $tags = [],
    ) {
        $this->payload = $payloadJson->decode();
    }
}
