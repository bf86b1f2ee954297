<?php

declare(strict_types=1);

namespace App\Console;

class Kernel extends \Illuminate\Foundation\Console\Kernel
{
    protected $commands = [OrderCommand::class];
}
