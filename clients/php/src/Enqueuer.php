<?php

declare(strict_types=1);

namespace Tickr;

/** Accepts jobs. {@see Client} sends them to tickr, and {@see Testing\FakeClient} records them for tests. */
interface Enqueuer
{
    /**
     * Enqueue a job.
     *
     * @param string|object        $kind           name of a kind, or a payload object with the attribute {@see Kind}
     * @param mixed                $payload        the payload, when `$kind` is a name
     * @param array<string, mixed> $options        see {@see NewJob}
     * @param string|null          $idempotencyKey 1 to 255 visible ASCII characters; the client makes one by default
     *
     * @throws Problem                   when the server refuses the job
     * @throws ConnectionFailed          when no server answers in time; the job may exist
     * @throws \InvalidArgumentException when an option or the payload is wrong
     */
    public function enqueue(
        string|object $kind,
        mixed $payload = [],
        array $options = [],
        ?string $idempotencyKey = null,
    ): Enqueued;

    /**
     * Enqueue up to 1,000 jobs, all or none.
     *
     * @param iterable<NewJob|object> $jobs jobs, or payload objects with the attribute {@see Kind}
     *
     * @return list<Enqueued> in the order of the jobs
     *
     * @throws Problem
     * @throws ConnectionFailed
     * @throws \InvalidArgumentException
     */
    public function enqueueMany(iterable $jobs, ?string $idempotencyKey = null): array;
}
