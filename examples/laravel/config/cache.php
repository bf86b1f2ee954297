<?php

return [
    'default' => 'file',
    'stores' => ['file' => ['driver' => 'file', 'path' => getenv('SHOP_DIR') . '/cache']],
    'prefix' => 'shop',
];
