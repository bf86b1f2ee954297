<?php

declare(strict_types=1);

namespace Tickr;

/** The answer to an enqueue. */
final class Enqueued
{
    /**
     * @param string       $id       id of the job
     * @param bool         $existing true when an unfinished job had the unique key, so that no job was made
     * @param list<string> $warnings reasons why the job would not run at present
     */
    public function __construct(
        public readonly string $id,
        public readonly bool $existing = false,
        public readonly array $warnings = [],
    ) {
    }
}
