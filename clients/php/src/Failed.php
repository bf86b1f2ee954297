<?php

declare(strict_types=1);

namespace Tickr;

/** The attempt failed; another one may succeed. Every other exception of a handler means the same. */
final class Failed extends Ending
{
    /** @param int|null $delayMs milliseconds until the next attempt. Default: the backoff of the job */
    public function __construct(string $message, private readonly ?int $delayMs = null)
    {
        parent::__construct($message);
    }

    public function verdict(): string
    {
        return 'failed';
    }

    public function delayMs(): ?int
    {
        return $this->delayMs;
    }
}
