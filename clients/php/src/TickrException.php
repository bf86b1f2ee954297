<?php

declare(strict_types=1);

namespace Tickr;

/** Every exception that this library throws by itself implements this interface. */
interface TickrException extends \Throwable
{
}
