<?php

declare(strict_types=1);

namespace Tickr;

/** A handler throws or returns one of these to end its attempt otherwise than with a result. */
abstract class Ending extends \RuntimeException implements TickrException
{
    /** @internal */
    abstract public function verdict(): string;

    /** @internal */
    public function delayMs(): ?int
    {
        return null;
    }
}
