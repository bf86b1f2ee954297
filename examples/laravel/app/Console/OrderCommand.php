<?php

declare(strict_types=1);

namespace App\Console;

use App\Jobs\MakeReport;
use App\Jobs\ResizePicture;
use App\Jobs\SendMail;
use Illuminate\Console\Command;
use Illuminate\Support\Facades\Bus;

/** Takes some orders, and waits for the report about them. */
class OrderCommand extends Command
{
    protected $signature = 'shop:order {count=3 : The number of orders}';

    protected $description = 'Take some orders';

    public function handle(): int
    {
        $orders = range(1, max(1, (int) $this->argument('count')));
        foreach ($orders as $order) {
            SendMail::dispatch($order, "customer$order@example.com");
        }
        // The report is made after the last picture.
        $pictures = array_map(static fn (int $order) => new ResizePicture($order), $orders);
        Bus::chain([...$pictures, new MakeReport(\count($orders))])->dispatch();
        $this->info(\count($orders) . ' orders were taken.');

        $report = MakeReport::file();
        for ($waited = 0; !is_file($report) && $waited < 600; $waited++) {
            usleep(100_000);
        }
        if (!is_file($report)) {
            $this->error('The report was not made within a minute.');
            return 1;
        }
        $this->line(file_get_contents($report));
        return 0;
    }
}
