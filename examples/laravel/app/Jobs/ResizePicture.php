<?php

declare(strict_types=1);

namespace App\Jobs;

use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;

/** Draws the picture of an order and makes it smaller. Portable pixmaps need no library. */
class ResizePicture implements ShouldQueue
{
    use Dispatchable;
    use InteractsWithQueue;
    use Queueable;

    public $timeout = 30;

    public function __construct(public int $order)
    {
    }

    public function handle(): void
    {
        [$size, $small] = [256, 64];
        $step = intdiv($size, $small);
        $pixels = '';
        for ($y = 0; $y < $size; $y += $step) {
            for ($x = 0; $x < $size; $x += $step) {
                $pixels .= \chr($x) . \chr($y) . \chr($this->order * 40 % 256);
            }
        }
        file_put_contents(self::file($this->order), "P6 $small $small 255\n$pixels");
    }

    public static function file(int $order): string
    {
        return storage_path("picture-$order.ppm");
    }
}
