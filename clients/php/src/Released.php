<?php

declare(strict_types=1);

namespace Tickr;

/** The worker gives the job back at once, and no attempt is used. Another worker may take it. */
final class Released extends Ending
{
    public function __construct(string $message = '')
    {
        parent::__construct($message);
    }

    public function verdict(): string
    {
        return 'released';
    }
}
