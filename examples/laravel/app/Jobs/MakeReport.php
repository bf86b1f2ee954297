<?php

declare(strict_types=1);

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;

/** Writes a report about the orders, when all mails are out. */
class MakeReport implements ShouldQueue
{
    use Dispatchable;
    use InteractsWithQueue;
    use Queueable;

    public $tries = 60;

    public function __construct(public int $orders)
    {
    }

    public function handle(): void
    {
        $log = storage_path('mails.log');
        $mails = is_file($log) ? substr_count(file_get_contents($log), 'Subject: Order ') : 0;
        if ($mails < $this->orders) {
            $this->release(1);
            return;
        }
        $lines = ["$mails mails were sent."];
        for ($order = 1; $order <= $this->orders; $order++) {
            $lines[] = "Picture $order has " . filesize(ResizePicture::file($order)) . ' bytes.';
        }
        file_put_contents(self::file() . '.new', implode("\n", $lines));
        rename(self::file() . '.new', self::file());
    }

    public static function file(): string
    {
        return storage_path('report.txt');
    }
}
